"""Sources of models and data: the hub, by name and revision, or made locally in the same format.

`auto` uses the hub if it is reachable or the files are downloaded, else local ones; the description says which.
Downloads are stored under hf/ on the volume; in the images HF_HOME points there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import httpx2  # huggingface_hub's HTTP client; its errors pass through
from huggingface_hub import HfApi, constants, get_token, snapshot_download
from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError, RevisionNotFoundError
from huggingface_hub.utils import validate_repo_id

from services.hf.made import texts
from vla_common.volume import Volume
from vla_contract.protocol.tokens import check_token
from vla_modelkit import hub


class Repository(NamedTuple):
    """A repository on the hub. `weights`: patterns of a model's files; `subset`: the configuration of a data set."""

    name: str
    revision: str
    licence: str
    weights: tuple[str, ...] = ()
    subset: str | None = None


# The commits are those shown by public copies of the hub's pages; none was downloaded. NSMC itself is a loading script,
# which datasets no longer runs: its conversion to Parquet is on a moving reference.
SMALL_FILES = ("*.json", "*.txt", "*.model")
SAFE = ("model.safetensors",)
MODELS = {
    "bert": Repository("beomi/kcbert-base", "0f2f3f8ce58a3e2dab3f4c9f547cbb612061c2ed", "apache-2.0", SAFE),
    "gpt": Repository(
        "skt/kogpt2-base-v2", "43ee9fc88ad1e170bb81d298d1a2cee97ab274e5", "cc-by-nc-sa-4.0", ("pytorch_model.bin",)
    ),
    "t5": Repository("google-t5/t5-small", "df1b051c49625cf57a3d0d8d3863ed4d13564fe4", "apache-2.0", SAFE),
}
DATA = {
    "reviews": Repository("e9t/nsmc", "refs/convert/parquet", "see its page"),
    "news": Repository(
        "daekeun-ml/naver-news-summarization-ko", "c8217bdefc4808f455bca22372587439b3124848", "apache-2.0"
    ),
    "pairs": Repository("Helsinki-NLP/opus_books", "1f9f6191d0e91a3c539c2595e2fe48fc1420de9b", "other", subset="en-fr"),
}


class Unreachable(Exception):
    """The hub is not reachable; the message says why."""


class LocalModel(NamedTuple):
    """A directory for `from_pretrained`, and a description of its source. real: from the hub."""

    directory: Path
    description: str
    real: bool


class Rows(NamedTuple):
    """Training and test rows, and a description of their source. real: from the hub."""

    train: list[texts.Row]
    test: list[texts.Row]
    description: str
    real: bool


def model(kind: str, requested: str, volume: Volume, steps: int | None = None) -> LocalModel:
    """Return a model of a kind (bert, gpt, t5). requested: auto, made, NAME or NAME@REVISION on the hub.

    steps: of pre-training, for a locally made model. Raises ValueError if the model is not available.
    """
    reason = "as requested"
    if requested != "made":
        repository = MODELS[kind] if requested == "auto" else parse_repository(requested)
        try:
            directory = fetch(repository, volume)
            description = f"{repository.name} at {repository.revision[:12]} from the hub ({repository.licence})"
            return LocalModel(directory, f"model: {description}", real=True)
        except Unreachable as error:
            if requested != "auto":
                raise ValueError(
                    f"model {repository.name!r} is not available: {error}; use `--model made`, which needs no network, "
                    f"or a model that is downloaded to {volume.path('hf')}"
                ) from error
            reason = f"{repository.name} is not available: {error}"
    from services.hf.made import models  # slow import of transformers' models

    steps = models.STEPS if steps is None else steps
    trained = (
        f"pre-trained on {models.PRETRAINING[kind]}" if steps and kind in models.PRETRAINING else "not pre-trained"
    )
    description = f"model: a small {kind} made locally, {trained} ({reason})"
    return LocalModel(models.directory_of(kind, volume, steps), description, real=False)


def parse_repository(requested: str) -> Repository:
    """Return the repository of NAME or NAME@REVISION. Raises ValueError for an invalid name."""
    name, _, revision = requested.partition("@")
    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise ValueError(f"model {requested!r} is not a valid hub name; expected OWNER/NAME[@REVISION]") from error
    for repository in MODELS.values():
        if name == repository.name and not revision:
            return repository
    return Repository(name, revision or "main", "see its page", ("*.safetensors", "*.bin"))


def fetch(repository: Repository, volume: Volume) -> Path:
    """Return the directory of a hub model, downloaded at the first call.

    Raises Unreachable if the hub is not reachable and the model is not downloaded, ValueError if the hub lacks it.
    """
    name, revision = repository.name, repository.revision
    patterns = [*SMALL_FILES, *repository.weights]
    options = {"revision": revision, "cache_dir": volume.path("hf") / "hub", "allow_patterns": patterns}
    reason = hub.unreachable()
    if not reason:
        check_token("the hub's token (HF_TOKEN)", get_token() or "")
        try:
            HfApi().model_info(name, revision=revision, timeout=hub.PROBE_S)
            return Path(snapshot_download(name, **options))
        except RepositoryNotFoundError as error:
            names = ", ".join(entry.name for entry in MODELS.values())
            raise ValueError(
                f"model {name!r} not found on the hub, or HF_TOKEN has no access; used here: {names}"
            ) from error
        except RevisionNotFoundError as error:
            raise ValueError(f"model {name!r} has no revision {revision!r}; remove @{revision}") from error
        except (OSError, httpx2.HTTPError) as error:
            reason = f"the hub does not answer ({first_line(error)})"
    try:
        directory = Path(snapshot_download(name, local_files_only=True, **options))
    except (OSError, ValueError) as error:  # the library raises either for "not in the cache"
        raise Unreachable(reason) from error
    if not any(directory.glob("*.safetensors")) and not any(directory.glob("*.bin")):
        raise Unreachable(f"{reason}, and the downloaded files lack the weights")
    return directory


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:160]


def data(kind: str, requested: str, count: int, volume: Volume, test_count: int = 200) -> Rows:
    """Return `count` training rows and `test_count` test rows of reviews, news or pairs. requested: auto or made.

    Hub data are the first rows of split `train`. Raises ValueError if there are too few rows.
    """
    if requested not in ("auto", "made"):
        raise ValueError(f"unknown data {requested!r}; expected auto (the hub's, else made locally) or made")
    repository, rows, reason = DATA[kind], None, "as requested"
    if requested == "auto":
        import datasets

        with hub.offline_if_unreachable() as unreachable:
            try:
                rows = datasets.load_dataset(
                    repository.name, repository.subset, split=f"train[:{count + test_count}]",
                    revision=repository.revision, cache_dir=str(volume.path("hf") / "datasets"),
                ).to_list()  # fmt: skip
            except (OSError, ValueError, RuntimeError, httpx2.HTTPError) as error:
                reason = f"{repository.name} is not available: {unreachable or first_line(error)}"
    real = rows is not None
    rows = texts.rows(kind, count + test_count) if rows is None else rows
    if len(rows) <= test_count:
        raise ValueError(f"{kind} has {len(rows)} rows; expected more than the {test_count} test rows")
    origin = f"{kind} made locally from a small grammar ({reason})"
    if real:
        origin = f"{repository.name} at {repository.revision[:24]} from the hub ({repository.licence})"
    return Rows(rows[:-test_count], rows[-test_count:], f"data: {origin}", real)


def require_push(name: str | None) -> None:
    """Raise ValueError if the requested upload is not possible; called before training."""
    if name is None:
        return
    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise ValueError(f"--push {name!r} is not a valid hub name; expected OWNER/NAME") from error
    if not check_token("the hub's token (HF_TOKEN)", get_token() or ""):
        raise ValueError(
            f"--push {name} requires a token with write access: set HF_TOKEN "
            "(https://huggingface.co/settings/tokens); nothing was trained or sent"
        )
    if constants.HF_HUB_OFFLINE:
        raise ValueError(f"--push {name} requires the hub, but HF_HUB_OFFLINE is set; unset it; nothing was sent")


def push(name: str | None, parts: list[Any]) -> None:
    """Upload model and tokenizer to a private repository; None: do nothing."""
    if name:
        for part in parts:
            part.push_to_hub(name, private=True)
        print(f"uploaded to {constants.ENDPOINT}/{name} (private)")
