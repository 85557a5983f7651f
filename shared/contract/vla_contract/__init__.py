"""What every vla-lab service shares: types, codec, app factory, client, volume layout.

Names are loaded when they are first used, so that a client or a health check does not import a web
framework. The README beside this package shows a policy service and its client in a few lines.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vla_contract.app import create_app as create_app
    from vla_contract.client import PolicyClient as PolicyClient
    from vla_contract.errors import ContractError as ContractError
    from vla_contract.errors import InvalidObservation as InvalidObservation
    from vla_contract.errors import PolicyRefused as PolicyRefused
    from vla_contract.errors import PolicyUnavailable as PolicyUnavailable
    from vla_contract.errors import SessionLost as SessionLost
    from vla_contract.errors import UnknownSession as UnknownSession
    from vla_contract.info import Checkpoint as Checkpoint
    from vla_contract.info import PolicyInfo as PolicyInfo
    from vla_contract.server import serve as serve
    from vla_contract.types import ActionChunk as ActionChunk
    from vla_contract.types import Observation as Observation
    from vla_contract.types import Policy as Policy
    from vla_contract.volume import Volume as Volume

_HOME = {
    "ActionChunk": "types",
    "Checkpoint": "info",
    "ContractError": "errors",
    "InvalidObservation": "errors",
    "Observation": "types",
    "Policy": "types",
    "PolicyClient": "client",
    "PolicyInfo": "info",
    "PolicyRefused": "errors",
    "PolicyUnavailable": "errors",
    "SessionLost": "errors",
    "UnknownSession": "errors",
    "Volume": "volume",
    "create_app": "app",
    "serve": "server",
}

__all__ = sorted(_HOME)


def __getattr__(name: str):
    if name not in _HOME:
        raise AttributeError(f"module 'vla_contract' has no attribute {name!r}; it has {', '.join(__all__)}")
    value = getattr(import_module(f"vla_contract.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
