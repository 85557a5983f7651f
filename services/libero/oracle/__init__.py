"""The oracle: a scripted policy that solves LIBERO tasks from the simulator's true state.

Read `plan.py` (goal -> skills), then `pick_place.py` (one skill), then `motion.py` (arm motions).
"""
