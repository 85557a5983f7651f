"""A model whose device is lost: its service's process says so and ends; a full GPU ends nothing."""

import os
from types import SimpleNamespace

import numpy as np
import pytest

from services.gr00t.service.policy import Gr00tPolicy
from tests.dying import ERRORS, LINGER_S, LOST, check_full, check_lost, service
from tests.gr00t.harness import info_of, layout_of, observe
from vla_contract import serve

DEADLY = "die"


class Network:
    """Takes one instruction badly, and stays lost; answers no motion to others."""

    def __init__(self, kind):
        self.kind, self.lost = kind, False
        head = SimpleNamespace(horizon=2, action_dim=32, state_dim=64)
        self.model = SimpleNamespace(config=SimpleNamespace(head=head, vision={"image_size": 28}))

    def infer(self, rows, noise):
        hit = any(DEADLY in row.ids for row in rows)
        self.lost = self.lost or (hit and self.kind != "full")
        if hit or self.lost:
            raise ERRORS[self.kind]
        return np.zeros((len(rows), 2, 32), np.float32)


def run(port, log, kind):
    """Serves the real policy over a network that fails at one instruction."""
    os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT, 0o600), 2)
    layout = layout_of("libero")
    words = SimpleNamespace(ids=str.split)
    serve(Gr00tPolicy(Network(kind), words, layout, info_of(layout, 2)), port=port, linger_s=LINGER_S)


def observation(instruction, session="a"):
    return observe(layout_of("libero"), instruction=instruction, session=session)


@pytest.mark.parametrize("kind", LOST)
def test_a_lost_device_makes_the_service_unready_and_ends_it(tmp_path, kind):
    log = tmp_path / "log"
    with service(run, log, kind) as (process, client):
        check_lost(process, client, log, kind, observation(DEADLY))


def test_a_full_gpu_fails_its_requests_and_no_others(tmp_path):
    with service(run, tmp_path / "log", "full") as (process, client):
        check_full(process, client, lambda session: observation(DEADLY, session), observation("open the drawer"))
