"""The tokenizer: Qwen2's byte-pair encoding with Eagle's marks. Its files come with the checkpoint.

Published checkpoints have none: upstream reads them from its own package. So they are fetched from there, at the pinned
commit, each checked by its sha256.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from vla_modelkit.checkpoint import CheckpointError

SOURCE_VARIABLE = "VLALAB_GR00T_SOURCE"
UPSTREAM_DIRECTORY = "gr00t/model/backbone/eagle2_hg_model"  # in Isaac-GR00T
URL = (
    "https://raw.githubusercontent.com/NVIDIA/Isaac-GR00T/4af2b622892f7dcb5aae5a3fb70bcb02dc217b96/"
    + UPSTREAM_DIRECTORY
)
FILES: Mapping[str, str] = MappingProxyType(
    {
        "vocab.json": "70f7cdb5ae22072d590b59fd726c9799e678a77701d32e87cd7b7106ed2a8ce8",
        "merges.txt": "85407d96ccd088398c5df07b7c764ed04dcc084b0e746f70016c16968be5e490",
        "added_tokens.json": "f6ec4747ee9acf6681f3e146371cf44bce6edd8d3018c504b976268857b6cc31",
        "tokenizer_config.json": "f58bacf742418429534015ac1c4f7a1a555db55d3fba48858f38ebb75a2a5660",
        "special_tokens_map.json": "a9086ab96352d779cbeb3665d1142a895540aec404d90641b2e2380d5dbb02b1",
    }
)
NEEDED = ("vocab.json", "merges.txt", "tokenizer_config.json")
TIMEOUT_S = 60.0


def load(directory: Path) -> Callable[[str], list[int]]:
    """Return the function from text to token ids. Raises CheckpointError if a file is missing or broken."""
    if missing := [name for name in NEEDED if not (directory / name).is_file()]:
        raise CheckpointError(
            f"{directory} has no {', '.join(missing)}: published GR00T checkpoints come without a tokenizer; run "
            "`./lab checkpoint gr00t` for it again, which fetches what is missing, or copy "
            f"{', '.join(FILES)} from {UPSTREAM_DIRECTORY} of Isaac-GR00T into it"
        )
    from transformers import Qwen2TokenizerFast

    try:
        tokenizer = Qwen2TokenizerFast.from_pretrained(str(directory), local_files_only=True)
    except Exception as error:  # tokenizers raises bare Exception
        raise CheckpointError(
            f"the tokenizer in {directory} cannot be read: {error}; get the checkpoint again"
        ) from error
    return lambda text: tokenizer(text)["input_ids"]


def complete(directory: Path, url: str = URL, files: Mapping[str, str] = FILES) -> None:
    """Add the tokenizer's files to `directory` if it has none: from a checkout of Isaac-GR00T, else from `url`.

    files: name -> sha256. Raises CheckpointError if a download fails or a hash differs.
    """
    if all((directory / name).is_file() for name in NEEDED):
        return
    source = Path(os.environ.get(SOURCE_VARIABLE, "")) / UPSTREAM_DIRECTORY
    for name, sha256 in files.items():
        draft = directory / f".{name}.draft"
        if os.environ.get(SOURCE_VARIABLE) and (source / name).is_file():
            shutil.copyfile(source / name, draft)
        else:
            try:
                with urllib.request.urlopen(f"{url}/{name}", timeout=TIMEOUT_S) as answer, draft.open("wb") as file:
                    shutil.copyfileobj(answer, file)
            except OSError as error:  # urllib's errors are some
                draft.unlink(missing_ok=True)
                raise CheckpointError(
                    f"the tokenizer cannot be downloaded from {url}/{name}: {error}; run the command again (weights "
                    f"are complete), or set {SOURCE_VARIABLE} to a checkout of Isaac-GR00T to use its files"
                ) from error
        digest = hashlib.sha256(draft.read_bytes()).hexdigest()
        if digest != sha256:
            draft.unlink()
            raise CheckpointError(f"{name} of the tokenizer has sha256 {digest}; expected {sha256}; it was not saved")
        draft.rename(directory / name)
