"""A simulator to look at and to drive: sessions over HTTP, each an environment in a process of its own.

`service` has the program and its routes, `session` a process as the service sees it; `simulation` is that process:
`vla_evaluation.rollout` with a person at `controls`. `saving` makes a video or a demonstration of what it did.
"""
