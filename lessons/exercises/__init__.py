"""Exercises made of the lessons: a blank to fill or a bug to find, and a grader that says in words what is wrong.

types.py                             what an exercise is made of
of_transformer, of_diffusion, of_vla their texts, the calls they are tried with, and the slips that circulate
source.py                            a lesson's code as a blank, or with a slip
judging.py                           what a student's code gives, beside what the lesson gives
attempt.py                           the process that a student's file runs in
check.py                             the program behind `./lab check`
"""

NAMES = (
    "transformer.mask", "transformer.positions", "transformer.attention", "transformer.shift", "transformer.warmup",
    "transformer.smoothing", "transformer.bug_self", "transformer.bug_batch", "transformer.bug_exponent",
    "transformer.bug_cross", "transformer.bug_scale", "transformer.bug_softmax",
    "diffusion.perturb", "diffusion.ddpm", "diffusion.ddim", "diffusion.guidance", "diffusion.bug_last_step",
    "vla.bins", "vla.gripper",
)  # fmt: skip
