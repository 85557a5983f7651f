"""The protocol between a policy service and its callers, with a client and a server.

Names are loaded at first use, so a client imports nothing of the server or its web framework. README.md shows a policy
service and its client in a few lines.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

# The repository's version: packages, `./lab --version`, the images' labels and `/v1/info` read it.
__version__ = "0.1.0"

if TYPE_CHECKING:
    from vla_contract.client.client import PolicyClient as PolicyClient
    from vla_contract.protocol.errors import ContractError as ContractError
    from vla_contract.protocol.errors import InvalidObservation as InvalidObservation
    from vla_contract.protocol.errors import PolicyError as PolicyError
    from vla_contract.protocol.errors import PolicyLost as PolicyLost
    from vla_contract.protocol.errors import PolicyRefused as PolicyRefused
    from vla_contract.protocol.errors import PolicyUnavailable as PolicyUnavailable
    from vla_contract.protocol.errors import SessionLost as SessionLost
    from vla_contract.protocol.errors import UnknownSession as UnknownSession
    from vla_contract.protocol.info import Checkpoint as Checkpoint
    from vla_contract.protocol.info import PolicyInfo as PolicyInfo
    from vla_contract.protocol.parts import GRIPPER_CLOSES as GRIPPER_CLOSES
    from vla_contract.protocol.parts import GRIPPER_OPENS as GRIPPER_OPENS
    from vla_contract.protocol.parts import HAND_STATE as HAND_STATE
    from vla_contract.protocol.parts import OSC_POSE as OSC_POSE
    from vla_contract.protocol.parts import Part as Part
    from vla_contract.protocol.types import ActionChunk as ActionChunk
    from vla_contract.protocol.types import Observation as Observation
    from vla_contract.protocol.types import Policy as Policy
    from vla_contract.server.app import create_app as create_app
    from vla_contract.server.serving import serve as serve

_NAMES = {
    "client.client": "PolicyClient",
    "protocol.errors": "ContractError InvalidObservation PolicyError PolicyLost PolicyRefused PolicyUnavailable "
    "SessionLost UnknownSession",
    "protocol.info": "Checkpoint PolicyInfo",
    "protocol.parts": "GRIPPER_CLOSES GRIPPER_OPENS HAND_STATE OSC_POSE Part",
    "protocol.types": "ActionChunk Observation Policy",
    "server.app": "create_app",
    "server.serving": "serve",
}
_HOME = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'vla_contract' has no attribute {name!r}; it has {', '.join(__all__)}")
    value = getattr(import_module(f"vla_contract.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
