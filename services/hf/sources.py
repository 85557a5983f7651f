"""Where a lab's model and data come from: the hub, by name and revision, or made here in the same format.

`auto` takes the hub's where it can be reached or has been downloaded, else what is made here, and says which of the two
it was. What is downloaded lies under hf/ on the volume, where HF_HOME points in the images.
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
    """A repository on the hub. `files`: what of it is needed; `subset`: of a data set that has several."""

    name: str
    revision: str
    licence: str
    files: tuple[str, ...] = ()
    subset: str | None = None


SMALL_FILES = ("*.json", "*.txt", "*.model")
WEIGHTS = ("*.safetensors", "*.bin")  # of a repository that is not in this table

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
    """A folder as `from_pretrained` takes it, and a sentence that says whose it is."""

    folder: Path
    said: str
    real: bool


@dataclass(frozen=True)
class Rows:
    """A data set's rows, for learning and for measuring, and a sentence that says whose they are."""

    train: list[texts.Row]
    test: list[texts.Row]
    said: str
    real: bool


def model(kind: str, asked: str, volume: Volume, steps: int | None = None) -> Found:
    """Returns the model of a kind (bert, gpt, t5): `asked` is auto, made, or a NAME or NAME@REVISION on the hub.

    steps: of pre-training, where it is made here. Raises ValueError for one that cannot be had.
    """
    if asked == "made":
        return _made(kind, volume, steps, "as asked")
    named = MODELS[kind] if asked == "auto" else _named(asked)
    try:
        folder = fetch(named, volume)
    except Unreachable as error:
        if asked == "auto":
            return _made(kind, volume, steps, f"{named.name} cannot be had: {error}")
        raise ValueError(
            f"model {named.name!r} cannot be had: {error}; `--model made` needs no network, and what was downloaded "
            f"once is found under {volume.path('hf')}"
        ) from error
    return Found(folder, f"model: {named.name} at {named.revision[:12]} from the hub ({named.licence})", True)


def _made(kind: str, volume: Volume, steps: int | None, why: str) -> Found:
    from services.hf.made import models  # imports transformers' models: a moment

    steps = models.STEPS if steps is None else steps
    taught = f"pre-trained on {models.FIRST[kind]}" if steps and kind in models.FIRST else "not pre-trained"
    return Found(models.folder_of(kind, volume, steps), f"model: a small {kind} made here, {taught} ({why})", False)


def _named(asked: str) -> Repository:
    name, _, revision = asked.partition("@")
    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise ValueError(
            f"model {asked!r} is no name of the hub's; expected OWNER/NAME or OWNER/NAME@REVISION"
        ) from error
    known = next((one for one in MODELS.values() if one.name == name and not revision), None)
    return known or Repository(name, revision or "main", "see its page", (*SMALL_FILES, *WEIGHTS))


def fetch(named: Repository, volume: Volume) -> Path:
    """Returns the folder of a model of the hub's, downloaded at the first call.

    Raises Unreachable where the hub cannot be asked and it is not there yet, ValueError where the hub does not have it.
    """
    place = {"revision": named.revision, "cache_dir": volume.path("hf") / "hub"}
    if why := hub.unreachable():
        return _downloaded(named, place, why)
    check_token("the hub's token (HF_TOKEN)", get_token() or "")
    try:
        HfApi().model_info(named.name, revision=named.revision, timeout=hub.PROBE_S)
        return Path(snapshot_download(named.name, allow_patterns=[*named.files], **place))
    except RepositoryNotFoundError as error:
        known = ", ".join(one.name for one in MODELS.values())
        raise ValueError(
            f"model {named.name!r} is not on the hub, or not for this token (HF_TOKEN); the labs' own are {known}"
        ) from error
    except RevisionNotFoundError as error:
        raise ValueError(
            f"model {named.name!r} has no revision {named.revision!r}; leave @… out for its newest"
        ) from error
    except (OSError, httpx2.HTTPError) as error:
        return _downloaded(named, place, f"the hub does not answer ({_first_line(error)})")


def _downloaded(named: Repository, place: dict[str, Any], why: str) -> Path:
    try:
        folder = Path(snapshot_download(named.name, local_files_only=True, allow_patterns=[*named.files], **place))
    except (OSError, ValueError) as error:  # the library's error for "not in the cache" is one or the other
        raise Unreachable(why) from error
    if not any(folder.glob("*.safetensors")) and not any(folder.glob("*.bin")):
        raise Unreachable(f"{why}, and what was downloaded of it lacks its weights")
    return folder


def data(kind: str, asked: str, count: int, volume: Volume, held: int = 200) -> Rows:
    """Returns `count` rows to learn from and `held` to measure with: of reviews, news or pairs; `asked`: auto or made.

    Of the hub's the first ones of its split `train`, in its order. Raises ValueError where there are too few.
    """
    if asked not in ("auto", "made"):
        raise ValueError(f"data {asked!r} is not known; expected auto (the hub's, else made here) or made")
    found, said = _hub_rows(kind, count + held, volume) if asked == "auto" else (None, "as asked")
    if found is None:
        rows = texts.rows(kind, count + held)
        said = f"data: {kind} made here from a small grammar ({said})"
    else:
        rows = found
    if len(rows) <= held:
        raise ValueError(
            f"{kind} has {len(rows)} rows; more than {held} are expected, for those are kept for measuring"
        )
    return Rows(rows[:-held], rows[-held:], said, found is not None)


def _hub_rows(kind: str, count: int, volume: Volume) -> tuple[list[texts.Row] | None, str]:
    import datasets

    named = DATA[kind]
    with hub.offline_if_unreachable() as why:
        try:
            loaded = datasets.load_dataset(
                named.name, named.subset, split=f"train[:{count}]", revision=named.revision,
                cache_dir=str(volume.path("hf") / "datasets"),
            )  # fmt: skip
        except (OSError, ValueError, RuntimeError, httpx2.HTTPError) as error:
            return None, f"{named.name} cannot be had: {why or _first_line(error)}"
    return loaded.to_list(), f"data: {named.name} at {named.revision[:24]} from the hub ({named.licence})"


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:160]


# --- upload ---------------------------------------------------------------------------------------------------------


def require_push(name: str | None) -> None:
    """Raises ValueError where something is to be uploaded, and cannot be; to be called before anything is trained."""
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
    """Uploads model and tokenizer, as a private repository, where a name was given."""
    for part in parts if name else []:
        part.push_to_hub(name, private=True)
    if name:
        say(f"uploaded to {constants.ENDPOINT}/{name} (private)")
