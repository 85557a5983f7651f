"""A server of one's own around lesson 3: `python -m lessons.vla_server FOLDER`, then POST /act on port 8010.

It takes {"image": rows of pixels of three numbers, "instruction": text, "unnorm_key": name} and answers {"action": the
seven numbers}. It lacks what `vla_contract` has: batches, limits, tokens, readiness, errors that say what to do.
"""

import sys
from pathlib import Path

import numpy as np
import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from lessons.vla import action_of, read_checkpoint


def app_for(folder: Path) -> Starlette:
    """Returns the application: the weights are read once, and each request is answered by them."""
    weights, config = read_checkpoint(folder)

    async def act(request: Request) -> JSONResponse:
        asked = await request.json()
        try:
            picture = np.array(asked["image"], np.uint8)
            given = picture, asked["instruction"], asked["unnorm_key"]
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            return JSONResponse({"error": f"expected image, instruction and unnorm_key: {error}"}, status_code=400)
        action = await run_in_threadpool(action_of, *given, folder, weights, config)  # others are heard meanwhile
        return JSONResponse({"action": action.tolist()})

    return Starlette(routes=[Route("/act", act, methods=["POST"])])


if __name__ == "__main__":
    uvicorn.run(app_for(Path(sys.argv[1])), host="127.0.0.1", port=int(sys.argv[2]) if len(sys.argv) > 2 else 8010)
