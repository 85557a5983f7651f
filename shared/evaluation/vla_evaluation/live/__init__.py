"""An interactive simulator: sessions over HTTP, each an environment in a process of its own.

`service` has the program and its routes, `session` the service's handle of a process; `simulation` is that process:
`vla_evaluation.rollout` with a user's `commands`. `saving` makes a video or a demonstration of an episode.
"""
