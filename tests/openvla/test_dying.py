"""A model whose device is lost: the real service process says so and ends; a full GPU ends nothing."""

import functools
import os
import runpy
import sys

import numpy as np
import pytest

from services.openvla.decoding.engine import Engine
from services.openvla.service import loading  # noqa: F401  imported once, before processes are forked
from tests.dying import ERRORS, LINGER_S, LOST, check_full, check_lost, service
from vla_contract import Observation
from vla_modelkit import service as programs

GREY = 77


def run(port, log, kind, checkpoint):
    """Serves the checkpoint by the program itself; its model fails at a picture of one grey, and stays lost."""
    os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT, 0o600), 2)
    sys.argv[1:] = ["--port", str(port), "--device", "cpu", "--checkpoint", checkpoint]
    generate, lost = Engine.generate, []

    def dying(self, pixels, *others, **named):
        hit = (pixels == GREY).all()
        if hit and kind != "full":
            lost.append(kind)
        if hit or lost:
            raise ERRORS[kind]
        return generate(self, pixels, *others, **named)

    Engine.generate = dying
    programs.serve = functools.partial(programs.serve, linger_s=LINGER_S)
    runpy.run_module("services.openvla", run_name="__main__")


def observation(level, session="a"):
    image = np.full((224, 224, 3), level, np.uint8)
    return Observation({"agentview": image}, None, "go", session, 0, unnorm_key="libero_goal_no_noops")


@pytest.mark.parametrize("kind", LOST)
def test_a_lost_device_makes_the_service_unready_and_ends_it(checkpoints, tmp_path, kind):
    log = tmp_path / "log"
    with service(run, log, kind, str(checkpoints())) as (process, client):
        check_lost(process, client, log, kind, observation(GREY))


def test_a_full_gpu_fails_its_requests_and_no_others(checkpoints, tmp_path):
    with service(run, tmp_path / "log", "full", str(checkpoints())) as (process, client):
        check_full(process, client, lambda session: observation(GREY, session), observation(0))
