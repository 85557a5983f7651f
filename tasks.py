"""For an Invoke of pipx or of the distribution: `invoke TASK` is `./lab TASK`. In .venv it is a link to that."""

import os
import sys
from pathlib import Path

LAB = Path(__file__).resolve().parent / "lab"
os.execv(LAB, [str(LAB), *sys.argv[1:]])
