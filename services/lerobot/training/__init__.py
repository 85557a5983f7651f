"""Training with LeRobot's own trainer."""

import os

# read when LeRobot's modules are imported: the lab has its own progress bar, and training downloads nothing
os.environ.setdefault("TQDM_DISABLE", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
