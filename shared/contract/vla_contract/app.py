"""The HTTP face of a policy: `create_app` turns a Policy, or a function that loads one, into an application."""

from collections.abc import Callable

from fastapi import FastAPI

from vla_contract.types import Policy

MAX_BODY_BYTES = 16 * 2**20  # two 1080p pictures and room to spare


def create_app(
    policy: Policy | Callable[[], Policy],
    *,
    max_batch: int | None = None,
    max_wait_ms: float = 5.0,
    queue_size: int = 64,
    token: str | None = None,
    max_body_bytes: int = MAX_BODY_BYTES,
) -> FastAPI:
    """Returns the application that serves a policy.

    policy          a Policy, or a function that loads and returns one; it is called in the background, so that
                    `/livez` answers at once and `/readyz` once weights are loaded and one inference is done
    max_batch       most observations in one call of `act`; at most, and by default, the policy's own `max_batch`
    max_wait_ms     longest wait for a batch to fill; a lone client never waits
    queue_size      requests that may wait; one more is answered with 429 and Retry-After
    token           when set, every route but the probes asks for `Authorization: Bearer <token>`
    max_body_bytes  a longer body is answered with 413
    """
    raise NotImplementedError("this arrives with the next commit")
