"""Where a service listens: the flags that every service's program has."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Serving:
    """An address and a port. A service's own settings add to it, and name its port."""

    host: str = "127.0.0.1"  # 0.0.0.0 opens it to the network, with VLALAB_TOKEN only
    port: int = 8000  # 0: any free one, named in the log

    def __post_init__(self):
        if not 0 <= self.port < 65536:
            raise ValueError(f"port is {self.port}; expected 0 to 65535")
        getattr(super(), "__post_init__", lambda: None)()  # of settings that stand beside these
