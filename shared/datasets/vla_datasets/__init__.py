"""Data sets of robot demonstrations: LeRobot's layout and LIBERO's HDF5 files, read, write, check, display.

An episode is columns (an array per feature, a row per step) and one video per camera. `loader.open_dataset` returns a
data set of either layout behind one interface; `writing.Writer` writes LeRobot v2.1 with GR00T's modality.json, and
`v3_writing.V3Writer` LeRobot v3.0.
"""

FORMATS_HELP = (
    "make one: lerobot-v3.0 (for LeRobot from 0.4), lerobot (v2.1, for GR00T N1.5 and LeRobot up to 0.3), or hdf5 "
    "(LIBERO's own files)"
)
