"""Data sets of robot demonstrations: LeRobot's layout and LIBERO's HDF5 files, read, write, check, display.

An episode is columns (an array per feature, a row per step) and one video per camera. `loader.open_dataset` returns a
data set of either layout behind one interface; `writing.Writer` writes LeRobot v2.1 with GR00T's modality.json.
"""

FORMATS_HELP = (
    "make one: lerobot (v2.1, with GR00T's modality.json), lerobot-v3.0 (by LeRobot's own converter), or hdf5 "
    "(LIBERO's own files)"
)
