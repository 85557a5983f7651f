"""`serve`: a policy on a port, until it is told to stop."""

from collections.abc import Callable

from vla_contract.types import Policy


def serve(policy: Policy | Callable[[], Policy], host: str = "127.0.0.1", port: int = 8001, **options) -> None:
    """Serves a policy until SIGINT or SIGTERM; `options` are those of `create_app`.

    Raises SystemExit(1) where the policy cannot be loaded, after `/readyz` has said why for some seconds.
    """
    raise NotImplementedError("this arrives with the next commit")
