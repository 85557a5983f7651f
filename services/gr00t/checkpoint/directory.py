"""A GR00T N1.5 checkpoint: its directory, metadata, record and embodiment, and how to download one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from services.gr00t.checkpoint.config import ADAPTER, check_model_type
from services.gr00t.checkpoint.embodiment import EMBODIMENT_FILE, Embodiment, embodiment, read, usable
from vla_common.volume import Volume
from vla_modelkit.checkpoint import RECORD, CheckpointError, find_directory, read_json, read_record
from vla_modelkit.checkpoint_program import RANDOM

OLD_RECORD = "vla-lab.json"  # the record's file name in old checkpoints
METADATA = "experiment_cfg/metadata.json"


@dataclass(frozen=True)
class PublishedCheckpoint:
    """A published checkpoint: repository and revision on the model hub, and the embodiment to serve it as."""

    repo: str
    revision: str
    embodiment: str


_LIBERO = "youliangtan/gr00t-n1.5-libero-{}-posttrain"
PUBLISHED: Mapping[str, PublishedCheckpoint] = MappingProxyType(
    {
        "base": PublishedCheckpoint("nvidia/GR00T-N1.5-3B", "869830fc749c35f34771aa5209f923ac57e4564e", "oxe_droid"),
        "libero_spatial": PublishedCheckpoint(
            _LIBERO.format("spatial"), "03294ae3de7d4870be8ae6e27cbdeffcb46b6425", "libero"
        ),
        "libero_object": PublishedCheckpoint(
            _LIBERO.format("object"), "f422266b016fd917127d3a0348062a5cd750df43", "libero"
        ),
        "libero_goal": PublishedCheckpoint(
            _LIBERO.format("goal"), "17be45f5bf8a543594761b263c68cf33f33847bd", "libero_mean_std"
        ),
        "libero_10": PublishedCheckpoint(_LIBERO.format("long"), "aa49078d5cc9ce72917bc4312f1ef12771f277de", "libero"),
    }
)
DOWNLOAD_HINT = (
    "get one with `./lab checkpoint gr00t --suite libero_goal` (fine-tuned on LIBERO) or `--suite base` "
    f"({PUBLISHED['base'].repo} at {PUBLISHED['base'].revision}), or copy its directory to checkpoints/ on the volume; "
    "then set VLALAB_GR00T_CHECKPOINT to the directory's name"
)


@dataclass(frozen=True)
class CheckpointDirectory:
    """A checkpoint directory, its metadata by embodiment tag, and our record of where it comes from.

    published_suite: the key in PUBLISHED of its recorded repository, or without a record of the one named like the
    directory; None: not a published checkpoint. overrides: changes to upstream's Eagle configuration, which only small
    test checkpoints have.
    """

    directory: Path
    metadata: Mapping[str, Any]
    record: Mapping[str, Any]

    def embodiment(self, name: str = "") -> Embodiment:
        """Return the embodiment to serve: the named one, else the one that the checkpoint states.

        Raises CheckpointError if none is stated, or if the checkpoint has no statistics for it.
        """
        selected = embodiment(name) if name else self.stated()
        tags, ours = ", ".join(self.metadata) or "nothing", ", ".join(usable(self.metadata))
        if selected is None:
            raise CheckpointError(
                f"checkpoint {self.directory.name} (statistics for {tags}) does not state its training embodiment, "
                f"which defines how its numbers are scaled; {self._serve_hint('NAME')}, NAME being the right one of "
                f"{ours or 'a JSON file: none of the lab fits'}; or put its {EMBODIMENT_FILE} into {self.directory}"
            )
        if selected.tag not in self.metadata:
            raise CheckpointError(
                f"checkpoint {self.directory.name} has statistics for {tags}; embodiment {selected.name!r} needs "
                f"{selected.tag!r}. Serve a checkpoint fine-tuned for it, such as {PUBLISHED['libero_spatial'].repo} "
                f"for LIBERO, or set VLALAB_GR00T_EMBODIMENT to one it has ({ours or 'none of ours'})"
            )
        return selected

    def stated(self) -> Embodiment | None:
        """Return the embodiment that the checkpoint was trained with, None if it is not stated.

        It is that of its own embodiment.json, else the recorded one, else that of a published repository. Raises
        CheckpointError for a record in which an earlier version wrote "libero" without knowing it.
        """
        if (self.directory / EMBODIMENT_FILE).is_file():
            return read(self.directory / EMBODIMENT_FILE)
        recorded, repo = self.record.get("embodiment"), self.record.get("repo", "")
        published = PUBLISHED[self.published_suite].embodiment if self.published_suite else None
        if not recorded or recorded == published:
            return embodiment(published) if published else None
        problem = f"{self.directory / RECORD} states embodiment {recorded!r}"
        command = f"`./lab checkpoint gr00t {{}} --name {self.directory.name}"
        if published and embodiment(recorded).tag == embodiment(published).tag:
            raise CheckpointError(
                f"{problem}; {repo} was trained with {published!r}, of the same sizes and another scale. Correct it: "
                f"{command.format(f'--suite {self.published_suite}')}`, or {self._serve_hint(published)}"
            )
        if recorded == "libero" and repo and not repo.startswith(RANDOM) and "embodiment_from" not in self.record:
            raise CheckpointError(
                f"{problem}, which an earlier version wrote for every repository, also where {repo} was trained with "
                f"another. State the right one: {command.format(f'--repo {repo}')} --embodiment NAME`, NAME being the "
                f"right one of {', '.join(usable(self.metadata))}, or {self._serve_hint('NAME')}"
            )
        return embodiment(recorded)

    def embodiment_from(self, name: str = "") -> str:
        """Return the source of `embodiment(name)`, for `/v1/info`."""
        if name:
            selected = embodiment(name)
            try:
                stated = self.stated() or selected
            except CheckpointError:
                stated = selected
            contradicts = stated.tag == selected.tag and stated != selected
            return "VLALAB_GR00T_EMBODIMENT" + (f", against {stated.name!r} of the checkpoint" if contradicts else "")
        if (self.directory / EMBODIMENT_FILE).is_file():
            return EMBODIMENT_FILE
        if self.record.get("embodiment"):
            return f"{RECORD}: {self.record.get('embodiment_from', 'recorded')}"
        return f"published table: {PUBLISHED[self.published_suite].repo}"

    def _serve_hint(self, name: str) -> str:
        command = f"VLALAB_GR00T_EMBODIMENT={name} ./lab up gr00t --checkpoint {self.directory.name}"
        return f"serve it with `{command}` (export has --embodiment {name})"

    @property
    def assumed(self) -> str:
        """Training details that no file states and that are assumed; empty for published and own checkpoints."""
        if self.published_suite or self.record.get("finetuned") or self.record.get("repo", "").startswith(RANDOM):
            return ""
        return "centre crop of 0.95 and resizing to 224 pixels, as in all of upstream's data configurations"

    @property
    def published_suite(self) -> str | None:
        if self.record:
            return suite_of(self.record.get("repo", ""))
        names = {entry.repo.split("/")[1]: suite for suite, entry in PUBLISHED.items()}
        return names.get(self.directory.name)

    @property
    def suites(self) -> tuple[str, ...]:
        """The suite that it was fine-tuned for, as recorded or published; empty: unknown."""
        suite = self.record.get("suite") or self.published_suite
        return (suite,) if suite and suite != "base" else ()

    @property
    def overrides(self) -> Mapping[str, Any] | None:
        return self.record.get("eagle")


def find(name: str, volume: Volume | None = None) -> CheckpointDirectory:
    """Find a checkpoint by name: a directory under checkpoints/ on the volume, or a path.

    Raises CheckpointError if it does not exist or is not a GR00T N1.5 checkpoint.
    """
    directory = find_directory(name, "VLALAB_GR00T_CHECKPOINT", DOWNLOAD_HINT, volume)
    lone_adapter = (directory / ADAPTER).is_file() and not (directory / "config.json").is_file()
    check_model_type(directory, {} if lone_adapter else read_json(directory / "config.json"))
    earlier = read_json(directory / OLD_RECORD) if (directory / OLD_RECORD).is_file() else {}
    return CheckpointDirectory(directory, read_json(directory / METADATA), read_record(directory) or earlier)


def suite_of(repo: str) -> str | None:
    """Return the key in PUBLISHED of a repository, or None."""
    return next((suite for suite, entry in PUBLISHED.items() if entry.repo == repo), None)
