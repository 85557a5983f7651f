"""A minimal server for lesson 3: `python -m lessons.vla_server DIRECTORY`, then POST /act on port 8010.

It accepts {"image": rows of pixels of three numbers, "instruction": text, "unnorm_key": name} and answers {"action":
seven numbers}. `vla_contract` adds batches, limits, tokens, readiness and helpful errors.
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


class ActRequest(BaseModel):
    """A request; FastAPI itself answers an invalid one with status 422 and what was expected."""

    image: list[Row]
    instruction: str
    unnorm_key: str


def app_for(directory: Path) -> FastAPI:
    """Return the application. The weights are read once."""
    (weights, config), app = read_checkpoint(directory), FastAPI()

    @app.post("/act")
    def act(body: ActRequest) -> dict[str, list[float]]:  # not async: FastAPI runs it in a thread
        if body.unnorm_key not in config["norm_stats"] or len({len(row) for row in body.image}) != 1:
            raise HTTPException(422, f"expected rows of one length, and unnorm_key of {list(config['norm_stats'])}")
        image = np.array(body.image, np.uint8)
        return {"action": action_of(image, body.instruction, body.unnorm_key, directory, weights, config).tolist()}

    return app


if __name__ == "__main__":
    uvicorn.run(app_for(Path(sys.argv[1])), host="127.0.0.1", port=int(sys.argv[2]) if len(sys.argv) > 2 else 8010)
