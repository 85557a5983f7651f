"""Where a lab's model and data come from: the hub, by name and revision, or made here in the same format.

`auto` takes the hub's where it can be reached or has been downloaded, else what is made here, and says which of the two
it was. Downloads lie under hf/ on the volume, where HF_HOME points in the images.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2  # huggingface_hub speaks with it, and lets its errors through
from huggingface_hub import HfApi, constants, get_token, snapshot_download
from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError, RevisionNotFoundError
from huggingface_hub.utils import validate_repo_id

from services.hf.made import texts
from vla_common.volume import Volume
from vla_contract.protocol.tokens import check_token
from vla_modelkit import hub


@dataclass(frozen=True)
class Repository:
    """A repository on the hub. `files`: those that are needed; `subset`: of a data set that has several."""

    name: str
    revision: str
    licence: str
    files: tuple[str, ...] = ()
    subset: str | None = None


SMALL_FILES = ("*.json", "*.txt", "*.model")

# The commits are those that public copies of the hub's pages show; none was downloaded here. NSMC's own files are a
# script, which datasets runs no more: the hub's conversion to Parquet is a moving reference, its commit not known here.
MODELS = {
    "bert": Repository(
        "beomi/kcbert-base", "0f2f3f8ce58a3e2dab3f4c9f547cbb612061c2ed", "apache-2.0",
        (*SMALL_FILES, "model.safetensors"),
    ),
    "gpt": Repository(
        "skt/kogpt2-base-v2", "43ee9fc88ad1e170bb81d298d1a2cee97ab274e5", "cc-by-nc-sa-4.0",
        (*SMALL_FILES, "pytorch_model.bin"),
    ),
    "t5": Repository(
        "google-t5/t5-small", "df1b051c49625cf57a3d0d8d3863ed4d13564fe4", "apache-2.0",
        (*SMALL_FILES, "model.safetensors"),
    ),
}  # fmt: skip
DATA = {
    "reviews": Repository("e9t/nsmc", "refs/convert/parquet", "see its page"),
    "news": Repository(
        "daekeun-ml/naver-news-summarization-ko", "c8217bdefc4808f455bca22372587439b3124848", "apache-2.0"
    ),
    "pairs": Repository(
        "Helsinki-NLP/opus_books", "1f9f6191d0e91a3c539c2595e2fe48fc1420de9b", "other", subset="en-fr"
    ),
}  # fmt: skip


class Unreachable(Exception):
    """The hub cannot be asked; the text says why."""


@dataclass(frozen=True)
class Found:
    """A folder as `from_pretrained` takes it, and a sentence that says whose it is. real: one of the hub's."""

    directory: Path
    said: str
    real: bool


@dataclass(frozen=True)
class Rows:
    """A data set's rows, for learning and for measuring, and a sentence that says whose they are."""

    train: list[texts.Row]
    test: list[texts.Row]
    said: str
    real: bool


# --- models -----------------------------------------------------------------------------------------------------------


def model(kind: str, asked: str, volume: Volume, steps: int | None = None) -> Found:
    """Return the model of a kind (bert, gpt, t5): `asked` is auto, made, or a NAME or NAME@REVISION on the hub.

    steps: of pre-training, where it is made here. Raise ValueError for one that cannot be had.
    """
    why = "as asked"
    if asked != "made":
        repository = MODELS[kind] if asked == "auto" else named(asked)
        try:
            directory = fetch(repository, volume)
            about = f"{repository.name} at {repository.revision[:12]} from the hub ({repository.licence})"
            return Found(directory, f"model: {about}", real=True)
        except Unreachable as error:
            if asked != "auto":
                raise ValueError(
                    f"model {repository.name!r} cannot be had: {error}; `--model made` needs no network, and what was "
                    f"downloaded once is found under {volume.path('hf')}"
                ) from error
            why = f"{repository.name} cannot be had: {error}"
    from services.hf.made import models  # imports transformers' models: a moment

    steps = models.STEPS if steps is None else steps
    taught = f"pre-trained on {models.FIRST[kind]}" if steps and kind in models.FIRST else "not pre-trained"
    return Found(models.directory_of(kind, volume, steps), f"model: a small {kind} made here, {taught} ({why})", False)


def named(asked: str) -> Repository:
    """Return the repository of NAME or NAME@REVISION. Raise ValueError for what cannot be a name."""
    name, _, revision = asked.partition("@")
    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise ValueError(
            f"model {asked!r} is no name of the hub's; expected OWNER/NAME or OWNER/NAME@REVISION"
        ) from error
    known = {repository.name: repository for repository in MODELS.values()}
    if name in known and not revision:
        return known[name]
    return Repository(name, revision or "main", "see its page", (*SMALL_FILES, "*.safetensors", "*.bin"))


def fetch(repository: Repository, volume: Volume) -> Path:
    """Return the folder of a model of the hub's, downloaded at the first call.

    Raise Unreachable where the hub cannot be asked and the model is not there yet, ValueError where the hub does not
    have it.
    """
    name, revision = repository.name, repository.revision
    options = {"revision": revision, "cache_dir": volume.path("hf") / "hub", "allow_patterns": [*repository.files]}
    why = hub.unreachable()
    if not why:
        check_token("the hub's token (HF_TOKEN)", get_token() or "")
        try:
            HfApi().model_info(name, revision=revision, timeout=hub.PROBE_S)
            return Path(snapshot_download(name, **options))
        except RepositoryNotFoundError as error:
            known = ", ".join(one.name for one in MODELS.values())
            raise ValueError(
                f"model {name!r} is not on the hub, or not for this token (HF_TOKEN); the labs' own are {known}"
            ) from error
        except RevisionNotFoundError as error:
            raise ValueError(f"model {name!r} has no revision {revision!r}; leave @… out for its newest") from error
        except (OSError, httpx2.HTTPError) as error:
            why = f"the hub does not answer ({first_line(error)})"
    try:
        directory = Path(snapshot_download(name, local_files_only=True, **options))
    except (OSError, ValueError) as error:  # the library's error for "not in the cache" is one or the other
        raise Unreachable(why) from error
    if not any(directory.glob("*.safetensors")) and not any(directory.glob("*.bin")):
        raise Unreachable(f"{why}, and its download lacks the weights")
    return directory


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:160]


# --- data -------------------------------------------------------------------------------------------------------------


def data(kind: str, asked: str, count: int, volume: Volume, held: int = 200) -> Rows:
    """Return `count` rows to learn from and `held` to measure with: of reviews, news or pairs; `asked`: auto or made.

    Of the hub's the first ones of its split `train`, in its order. Raise ValueError where there are too few.
    """
    if asked not in ("auto", "made"):
        raise ValueError(f"data {asked!r} is not known; expected auto (the hub's, else made here) or made")
    rows, why = hub_rows(DATA[kind], count + held, volume) if asked == "auto" else (None, "as asked")
    if real := rows is not None:
        said = f"data: {DATA[kind].name} at {DATA[kind].revision[:24]} from the hub ({DATA[kind].licence})"
    else:
        rows, said = texts.rows(kind, count + held), f"data: {kind} made here from a small grammar ({why})"
    if len(rows) <= held:
        raise ValueError(
            f"{kind} has {len(rows)} rows; more than {held} are expected, for those are kept for measuring"
        )
    return Rows(rows[:-held], rows[-held:], said, real)


def hub_rows(repository: Repository, count: int, volume: Volume) -> tuple[list[texts.Row] | None, str]:
    """Return the first rows of a data set of the hub's; or None, and why it cannot be had."""
    import datasets

    with hub.offline_if_unreachable() as why:
        try:
            loaded = datasets.load_dataset(
                repository.name, repository.subset, split=f"train[:{count}]", revision=repository.revision,
                cache_dir=str(volume.path("hf") / "datasets"),
            )  # fmt: skip
        except (OSError, ValueError, RuntimeError, httpx2.HTTPError) as error:
            return None, f"{repository.name} cannot be had: {why or first_line(error)}"
    return loaded.to_list(), ""


# --- upload -----------------------------------------------------------------------------------------------------------


def require_push(name: str | None) -> None:
    """Raise ValueError where an upload is asked for and not possible; called before anything is trained."""
    if name is None:
        return
    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise ValueError(f"--push {name!r} is no name of the hub's; expected OWNER/NAME") from error
    if not check_token("the hub's token (HF_TOKEN)", get_token() or ""):
        raise ValueError(
            f"--push {name} needs a token that may write to the hub: set HF_TOKEN "
            "(https://huggingface.co/settings/tokens); nothing was trained or sent"
        )
    if constants.HF_HUB_OFFLINE:
        raise ValueError(
            f"--push {name} needs the hub, and HF_HUB_OFFLINE is set; unset it; nothing was trained or sent"
        )


def push(name: str | None, parts: list[Any], say: Callable[[str], None] = print) -> None:
    """Upload model and tokenizer, as a private repository, where a name was given."""
    if name:
        for part in parts:
            part.push_to_hub(name, private=True)
        say(f"uploaded to {constants.ENDPOINT}/{name} (private)")
