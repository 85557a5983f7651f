"""The options of every program that downloads or creates a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass

from vla_common.options import Options, option

REPOSITORY = r"[\w-][\w.-]*/[\w-][\w.-]*"  # OWNER/NAME on the hub


@dataclass(frozen=True)
class CheckpointOptions(Options):
    """The checkpoint and its directory."""

    suite: str = option(
        "", "the published checkpoint of this suite; base: of none, where there is one", kind="published suite"
    )
    repo: str = option(
        "",
        "another repository on the hub",
        pattern=REPOSITORY,
        expected="a repository's owner and name with a slash between",
        metavar="OWNER/NAME",
    )
    tiny: bool = option(False, "create a small random checkpoint instead: no download, meaningless actions")
    name: str = option(
        "", "its directory under checkpoints/ on the volume", default_help="as published", kind="directory name"
    )
    revision: str = option(
        "",
        "commit, tag or branch of the repository",
        default_help='the pinned one, for another repository "main" as it is now',
        group="internal",
    )
    size: str = option("tiny", "with --tiny: its size", group="internal")
    seed: int = option(0, "with --tiny: seed of the random weights", group="internal")
    force: bool = option(False, "create or download it again if it exists", group="internal")
