"""A simulator to look at and to drive: sessions over HTTP, each an environment in a process of its own.

`serving` is the program, `app` its routes, `session` a process as the service sees it; `player` is that process:
`vla_evaluation.rollout` with a person at `controls`. What it did is `keeping`'s to make a film or a demonstration of.
"""
