"""The flags of every service: its address and port."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Serving:
    """The address and port a service listens on. Each service adds its settings and its default port."""

    host: str = "127.0.0.1"  # 0.0.0.0: the network; requires VLALAB_TOKEN
    port: int = 8000  # 0: any free port, printed to the log

    def __post_init__(self):
        if not 0 <= self.port < 65536:
            raise ValueError(f"port is {self.port}; expected 0 to 65535")
        getattr(super(), "__post_init__", lambda: None)()  # of other base classes
