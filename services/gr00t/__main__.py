"""`python -m services.gr00t --port 8004`: serves GR00T N1.5. What else there is to choose comes from VLALAB_GR00T_*."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields

import tyro

from services.gr00t import upstream
from services.gr00t.act_json import SCHEMAS, decoder
from services.gr00t.attention import KINDS
from services.gr00t.checkpoint import Found, find
from services.gr00t.embodiments import Embodiment
from services.gr00t.layout import Layout, layout
from vla_contract import Policy, serve
from vla_contract.errors import did_you_mean

log = logging.getLogger("vla_contract")
PREFIX = "VLALAB_GR00T_"
OTHERS = ("PORT", "MEMORY", "GPU", "SOURCE", "COMMIT")  # of the same prefix, and read by others


@dataclass(frozen=True)
class Settings:
    """The service's settings, each from the variable VLALAB_GR00T_<NAME>; an empty one counts as unset."""

    checkpoint: str | None = None  # a folder under checkpoints/ on the volume, or a path
    device: str = "auto"  # auto, cpu, cuda or cuda:N
    attention: str = "auto"  # auto, sdpa or flash
    embodiment: str | None = None  # libero, libero_mean_std or oxe_droid; default: as recorded, else libero
    max_batch: int = 16  # most observations in one pass
    seed: int = 0  # of the noise that actions start from

    def __post_init__(self):
        if self.attention not in KINDS:
            raise ValueError(f"{PREFIX}ATTENTION is {self.attention!r}{did_you_mean(self.attention, KINDS)}")
        if self.max_batch < 1:
            raise ValueError(f"{PREFIX}MAX_BATCH is {self.max_batch}; expected 1 or more")

    @classmethod
    def from_variables(cls, variables: Mapping[str, str]) -> Settings:
        """Returns the settings that are set. Raises ValueError naming the variable where one makes no sense."""
        values: dict[str, str | int] = {}
        names = {PREFIX + field.name.upper(): field for field in fields(cls)}
        for name, text in variables.items():
            if not text or not name.startswith(PREFIX) or name.removeprefix(PREFIX) in OTHERS:
                continue
            if name not in names:
                raise ValueError(f"unknown variable {name}{did_you_mean(name, names)}")
            values[names[name].name] = _number(name, text) if names[name].type == "int" else text
        return cls(**values)


@dataclass(frozen=True)
class Server:
    """Serve GR00T N1.5. $VLALAB_TOKEN, when set, is the token that clients must send."""

    host: str = "127.0.0.1"  # 0.0.0.0 opens it to the network
    port: int = 8004  # 0: any free one, named in the log

    def __post_init__(self):
        if not 0 <= self.port < 65536:
            raise ValueError(f"port is {self.port}; expected 0 to 65535")


def load(settings: Settings, found: Found, embodiment: Embodiment, sizes: Layout) -> Policy:
    """Returns the policy with its weights loaded, which has been seen to look at its pictures."""
    upstream.prepare()
    from services.gr00t.attention import choose
    from services.gr00t.policy import ServedGr00t
    from vla_modelkit.devices import choose_device

    device = str(choose_device(settings.device))
    attention = choose(settings.attention, device)
    log.info(
        "loading %s on %s, attention %s", found.folder, device, " since ".join(filter(None, vars(attention).values()))
    )
    checkpoint = found.described()
    policy = ServedGr00t(
        upstream.load_policy(found.folder, embodiment, attention, device, found.sizes),
        sizes,
        attention,
        device,
        checkpoint=checkpoint,
        suites=found.suites,
        max_batch=settings.max_batch,
        seed=settings.seed,
        lock_hash=os.environ.get("VLALAB_LOCK_HASH") or None,
        source=upstream.version(),
    )
    policy.check_sees()
    return policy


def main() -> None:
    """Serves the policy until it is told to stop. What is missing is said before a port is opened."""
    server = tyro.cli(Server, prog="python -m services.gr00t")
    try:
        settings = Settings.from_variables(os.environ)
        if (reason := upstream.missing()) is not None:
            raise upstream.UpstreamMissing(reason)
        found = find(settings.checkpoint)
        embodiment = found.embodiment(settings.embodiment)
        sizes = layout(embodiment, found.metadata[embodiment.tag])
        serve(
            lambda: load(settings, found, embodiment, sizes),
            host=server.host,
            port=server.port,
            token=os.environ.get("VLALAB_TOKEN") or None,
            decode_act=decoder(sizes),
            act_schemas=SCHEMAS,
        )
    except (OSError, ValueError) as error:  # each says what is wrong and what to do
        raise SystemExit(f"gr00t: {error}") from None


def _number(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{name} is {text!r}; expected a whole number") from None


if __name__ == "__main__":
    main()
