"""A server of one's own around lesson 3: `python -m lessons.vla_server FOLDER`, then POST /act on port 8010.

It takes {"image": rows of pixels of three numbers, "instruction": text, "unnorm_key": name} and answers {"action": the
seven numbers}. It lacks what `vla_contract` has: batches, limits, tokens, readiness, errors that say what to do.
"""

import sys
from pathlib import Path
from typing import Annotated

import numpy as np
import uvicorn
from fastapi import FastAPI, HTTPException
from pydantic import BaseModel, Field

from lessons.vla import action_of, read_checkpoint

Byte = Annotated[int, Field(ge=0, le=255)]
Row = Annotated[list[tuple[Byte, Byte, Byte]], Field(min_length=1)]  # of pixels


class Asked(BaseModel):
    """A question; what does not fit is answered by FastAPI itself, with status 422 and what was expected."""

    image: list[Row]
    instruction: str
    unnorm_key: str


def app_for(directory: Path) -> FastAPI:
    """Returns the application: the weights are read once, and each request is answered by them."""
    (weights, config), app = read_checkpoint(directory), FastAPI()

    @app.post("/act")
    def act(asked: Asked) -> dict[str, list[float]]:  # not async: it runs in a thread, and others are heard meanwhile
        if asked.unnorm_key not in config["norm_stats"] or len({len(row) for row in asked.image}) != 1:
            raise HTTPException(422, f"expected rows of one length, and unnorm_key of {list(config['norm_stats'])}")
        picture = np.array(asked.image, np.uint8)
        return {"action": action_of(picture, asked.instruction, asked.unnorm_key, directory, weights, config).tolist()}

    return app


if __name__ == "__main__":
    uvicorn.run(app_for(Path(sys.argv[1])), host="127.0.0.1", port=int(sys.argv[2]) if len(sys.argv) > 2 else 8010)
