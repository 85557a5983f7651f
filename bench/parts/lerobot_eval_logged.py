"""`python lerobot_eval_logged.py LOG FLAG…`: LeRobot's own evaluation program with its flags; logs every rollout.

It runs in LeRobot's environment with LIBERO. LOG gets a line of JSON per rollout: when it ended (s), and for every
environment of the batch the episode's success and length. The actions go to LOG.NUMBER.npy, float32 [B, T, 7].
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from lerobot.scripts import lerobot_eval

from bench.common import replace_attributes


def main() -> None:
    log = Path(sys.argv.pop(1))
    rollout, count = lerobot_eval.rollout, 0

    def logged(*arguments: object, **keywords: object) -> dict[str, Any]:
        nonlocal count
        result: dict[str, Any] = rollout(*arguments, **keywords)
        ended_at = time.time()
        successes, done = (result[name].numpy() for name in ("success", "done"))
        steps = done.argmax(1) + 1
        ended = [bool(success[:length].any()) for success, length in zip(successes, steps, strict=True)]
        np.save(f"{log}.{count}.npy", result["action"].numpy())
        with log.open("a") as lines:
            lines.write(json.dumps({"ended_at": ended_at, "success": ended, "steps": steps.tolist()}) + "\n")
        count += 1
        return result

    replace_attributes(lerobot_eval, rollout=logged)
    lerobot_eval.main()


if __name__ == "__main__":
    main()
