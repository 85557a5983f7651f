"""The Gymnasium ids of LIBERO's suites. Gymnasium calls `register` when it is imported, where this is installed."""

from __future__ import annotations

# Most steps of an episode: those of OpenVLA's evaluation, on which its published results rest.
MAX_STEPS = {"libero_spatial": 220, "libero_object": 280, "libero_goal": 300, "libero_10": 520, "libero_90": 400}


def register() -> None:
    """Register `fast_libero/<suite>-v0` for each suite, unless that was done."""
    from gymnasium.envs import registration

    for suite, steps in MAX_STEPS.items():
        name = f"fast_libero/{suite}-v0"
        if name not in registration.registry:
            registration.register(name, "fast_libero.gym:LiberoEnv", max_episode_steps=steps, kwargs={"suite": suite})
