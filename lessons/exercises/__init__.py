"""Exercises made from the lessons: a function to write or a bug to find, and a grader that names the mistake.

types.py      the parts of an exercise
*_exercises   texts, calls to compare, and common mistakes
source.py     all exercises by name; the lesson's code with a blank or a mistake in it
grader.py     compares the results of a student's code with the lesson's
runner.py     runs a student's file in a process of its own
check.py      the program behind `./lab check`
table.py      a class's results
"""

NAMES = (
    "transformer.mask", "transformer.positions", "transformer.attention", "transformer.shift", "transformer.warmup",
    "transformer.smoothing", "transformer.bug_self", "transformer.bug_batch", "transformer.bug_exponent",
    "transformer.bug_cross", "transformer.bug_scale", "transformer.bug_softmax",
    "diffusion.perturb", "diffusion.ddpm", "diffusion.ddim", "diffusion.guidance", "diffusion.bug_last_step",
    "vla.bins", "vla.gripper",
    "seeing.where", "seeing.bell", "seeing.ahead", "seeing.bug_cells",
)  # fmt: skip
