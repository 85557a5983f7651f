"""An open file as an answer."""

from __future__ import annotations

import os
from pathlib import Path

from starlette.responses import FileResponse

from services.reports import files


class OpenFile(FileResponse):
    """An open file as an answer, whole or the ranges asked for; it closes the descriptor when it was sent."""

    def __init__(self, descriptor: int, name: str):
        self.descriptor = descriptor
        kind = files.MEDIA[Path(name).suffix]
        super().__init__(f"/proc/self/fd/{descriptor}", stat_result=os.fstat(descriptor), media_type=kind)

    async def __call__(self, scope, receive, send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            os.close(self.descriptor)
