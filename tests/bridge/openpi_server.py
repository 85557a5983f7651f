"""`python openpi_server.py --port 0 --log FILE [--dies-at N]`: zeros by openpi's protocol, with openpi's own msgpack.

It runs in an environment of its own, made of `openpi-client` from the package index. Each observation is a line of the
log, its values described; the first line is the port. With --dies-at it ends without a word at that observation.
"""

import argparse
import asyncio
import json
import os

import numpy as np
from openpi_client import msgpack_numpy
from websockets.asyncio.server import serve


def described(observation: dict) -> dict:
    """Returns dtype and shape of arrays, and everything else as it is."""
    return {
        key: [str(value.dtype), list(value.shape)] if isinstance(value, np.ndarray) else value
        for key, value in observation.items()
    }


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--log")
    parser.add_argument("--dies-at", type=int, default=0)
    options = parser.parse_args()
    with open(options.log, "w", buffering=1) as log:
        seen = 0

        async def handle(connection) -> None:
            nonlocal seen
            packer = msgpack_numpy.Packer()
            await connection.send(packer.pack({"reset_pose": [0.0, -1.5]}))
            async for frame in connection:
                observation = msgpack_numpy.unpackb(frame)
                log.write(json.dumps(described(observation)) + "\n")
                seen += 1
                if seen == options.dies_at:
                    os._exit(3)
                answer = {"actions": np.zeros((10, 7)), "state": observation["observation/state"]}
                answer |= {"policy_timing": {"infer_ms": 0.5}, "server_timing": {"infer_ms": np.float64(0.6)}}
                await connection.send(packer.pack(answer))

        async with serve(handle, "127.0.0.1", options.port, compression=None, max_size=None) as server:
            log.write(f"{server.sockets[0].getsockname()[1]}\n")
            await server.serve_forever()


asyncio.run(main())
