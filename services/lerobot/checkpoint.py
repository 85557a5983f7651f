"""A LeRobot checkpoint directory: config.json with its `type`, model.safetensors, and two processor files."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from lerobot.configs import FeatureType, NormalizationMode, PreTrainedConfig
from lerobot.policies.factory import get_policy_class, make_pre_post_processors
from lerobot.policies.pretrained import PreTrainedPolicy
from lerobot.processor import PolicyProcessorPipeline
from torch import Tensor

from services.lerobot.repositories import BASE, POSTPROCESSOR, PREPROCESSOR, check_repositories, local_names
from services.lerobot.settings import PREFIX
from services.lerobot.types import HARMLESS_FIELDS, HARMLESS_PREFIXES, REMOTE_CODE
from vla_contract.protocol.errors import did_you_mean
from vla_modelkit.checkpoint import ADAPTER, CheckpointError, read_json
from vla_modelkit.weights import Safetensors, check_names

_STATISTICS_IN_WEIGHTS = ("normalize_inputs.", "normalize_targets.", "unnormalize_outputs.")  # LeRobot before 0.4
STATISTICS = f"{PREFIX}STATISTICS"
NEEDED = {  # statistics that a normalization mode reads
    NormalizationMode.MEAN_STD: ("mean", "std"),
    NormalizationMode.MIN_MAX: ("min", "max"),
    NormalizationMode.QUANTILES: ("q01", "q99"),
    NormalizationMode.QUANTILE10: ("q10", "q90"),
}


@dataclasses.dataclass(frozen=True)
class LoadedPolicy:
    """A policy with its processors, all loaded by LeRobot and checked against the files.

    statistics: the data set whose statistics were selected; "" if the checkpoint has one set of them.
    """

    config: PreTrainedConfig
    policy: PreTrainedPolicy
    preprocessor: PolicyProcessorPipeline
    postprocessor: PolicyProcessorPipeline
    statistics: str = ""


def load(directory: Path, device: str, remote_code: bool = False, statistics: str = "") -> LoadedPolicy:
    """Load a checkpoint through LeRobot's own classes onto `device`.

    statistics: of a checkpoint of several data sets, the one to normalize by. LeRobot's loaders go on with random
    weights or without statistics where files do not fit, so both are compared with the files afterwards. Raises
    CheckpointError saying what does not fit and what to do.
    """
    dropped = check_files(directory, remote_code)
    with local_names(directory, dropped) as path:
        policy = build_policy(path, directory, device)
        with explained_errors(directory):
            preprocessor, postprocessor = make_pre_post_processors(
                policy.config, str(path), preprocessor_overrides={"device_processor": {"device": device}}
            )
    if statistics:
        select_statistics(statistics, preprocessor, postprocessor)
    check_statistics(preprocessor, postprocessor)
    return LoadedPolicy(policy.config, policy, preprocessor, postprocessor, statistics)


def build_policy(path: Path, weights: Path, device: str) -> PreTrainedPolicy:
    """Build the policy in `path`, the checkpoint as LeRobot reads it. Raises CheckpointError if names, shapes or values
    of its tensors are not those in `weights`.
    """
    with explained_errors(weights):
        config = PreTrainedConfig.from_pretrained(path)
        config.device, config.pretrained_path = device, path
        if hasattr(config, "pretrained_backbone_weights"):
            config.pretrained_backbone_weights = None  # else the backbone is downloaded, to be overwritten at once
        policy = get_policy_class(config.type).from_pretrained(path, config=config)
    file, state = Safetensors(weights), policy.state_dict()
    shapes = file.shapes()
    stored = {state[name].data_ptr() for name in shapes if name in state}
    expected = {  # of tensors that share memory, safetensors stores one
        name: tuple(tensor.shape)
        for name, tensor in state.items()
        if name in shapes or tensor.data_ptr() not in stored or not tensor.numel()
    }
    check_names(shapes, expected)
    for name in shapes:
        if not state[name].cpu().equal(file.read(name).to(state[name].dtype)):
            raise CheckpointError(f"{name} of the loaded model differs from {weights}: LeRobot did not load it")
    return policy


@contextmanager
def explained_errors(directory: Path) -> Iterator[None]:
    """Raise LeRobot's errors as CheckpointError."""
    try:
        yield
    except CheckpointError:
        raise
    except ImportError as error:
        kind = read_json(directory / "config.json")["type"]
        raise CheckpointError(f"policy type {kind!r} cannot run in this environment: {error}") from error
    except (KeyError, OSError, RuntimeError, TypeError, ValueError) as error:
        raise CheckpointError(f"LeRobot cannot load {directory}: {' '.join(str(error).split())[:400]}") from error


def check_files(directory: Path, remote_code: bool = False, base: Path | None = None) -> list[str]:
    """Check what the files state before anything is built from them, and return the config's fields to ignore.

    base: of an adapter, the checkpoint whose weights it changes. Raises CheckpointError.
    """
    if (directory / ADAPTER).is_file() and not base:
        name = read_json(directory / ADAPTER).get(BASE) or "its base checkpoint"
        raise CheckpointError(
            f"{directory} is an adapter of {name}; merge them: ./lab checkpoint lerobot --name {directory.name}"
        )
    config = read_json(directory / "config.json")
    known_types = PreTrainedConfig.get_known_choices()
    if config.get("type") not in known_types:
        hint = did_you_mean(str(config.get("type")), list(known_types))
        raise CheckpointError(
            f"{directory / 'config.json'} has type {config.get('type')!r}, not one of LeRobot's{hint}"
        )
    if config["type"] in REMOTE_CODE and not remote_code:
        raise CheckpointError(
            f"policy type {config['type']!r} runs code from its repository (trust_remote_code); read that code, then "
            "allow it with VLALAB_LEROBOT_REMOTE_CODE=true"
        )
    fields = {field.name for field in dataclasses.fields(known_types[config["type"]])}
    unknown = sorted(config.keys() - fields - {"type"})
    dropped = [name for name in unknown if name in HARMLESS_FIELDS or name.startswith(HARMLESS_PREFIXES)]
    if refused := [name for name in unknown if name not in dropped]:
        raise CheckpointError(
            f"{directory / 'config.json'} has {', '.join(refused)}, unknown to LeRobot {version('lerobot')}: the "
            "checkpoint is of another version. If they do not change the model, remove them from a copy of it"
        )
    weights = Safetensors(base or directory)
    missing = [name for name in (PREPROCESSOR, POSTPROCESSOR) if not (directory / name).is_file()]
    if missing and any(name.startswith(_STATISTICS_IN_WEIGHTS) for name in weights.shapes()):
        raise CheckpointError(
            f"{directory} is of LeRobot before 0.4: its statistics are in the weights. Convert it: "
            "`./lab shell lerobot`, then python -m lerobot.processor.migrate_policy_normalization "
            f"--pretrained-path {directory}"
        )
    if missing:
        raise CheckpointError(f"{directory} has no {' and no '.join(missing)}; download the checkpoint again")
    check_repositories(directory)
    return dropped


def select_statistics(name: str, *pipelines: PolicyProcessorPipeline) -> None:
    """Normalize by the statistics that are stored under `name`, such as so100.buffer. Raises CheckpointError."""
    states = [(step, step.state_dict()) for step in normalizers(*pipelines)]
    if not any(key.startswith(f"{name}.") for _, state in states for key in state):
        choices = sorted({choice for step, state in states for choice in data_sets(step, state)})
        raise CheckpointError(
            f"statistics {name!r} not found{did_you_mean(name, choices)}"
            if choices
            else f"the checkpoint has statistics of one data set; remove {STATISTICS}={name}"
        )
    for step, state in states:
        selected = {key.removeprefix(f"{name}."): value for key, value in state.items() if key.startswith(f"{name}.")}
        step.load_state_dict({**state, **selected})


def check_statistics(*pipelines: PolicyProcessorPipeline) -> None:
    """Check that every normalized feature has its statistics: LeRobot passes on what it finds none for."""
    for step in normalizers(*pipelines):
        state = step.state_dict()
        for key, feature in step.features.items():
            is_output = type(step).__name__.startswith("Unnormalizer")
            mode = step.norm_map.get(feature.type, NormalizationMode.IDENTITY)
            if mode is NormalizationMode.IDENTITY or is_output != (feature.type is FeatureType.ACTION):
                continue
            missing = [name for name in NEEDED.get(mode, ()) if f"{key}.{name}" not in state]
            if missing:
                choices = data_sets(step, state)
                hint = (
                    f"; it has those of {', '.join(choices)}: set {STATISTICS}={choices[0]}, or fine-tune it"
                    if choices
                    else ""
                )
                raise CheckpointError(
                    f"feature {key!r} is normalized by {mode.value}, and the checkpoint has no "
                    f"{' and no '.join(missing)} for it{hint}"
                )


def normalizers(*pipelines: PolicyProcessorPipeline) -> list[Any]:
    """Return the steps that normalize or undo it."""
    return [step for pipeline in pipelines for step in pipeline.steps if hasattr(step, "norm_map")]


def data_sets(step: Any, state: Mapping[str, Tensor]) -> list[str]:
    """Return the data sets with statistics of their own: so100.buffer for the key so100.buffer.action.mean."""
    features = {key.rpartition(".")[0] for key in state}
    return sorted(
        {name.removesuffix(f".{key}") for name in features for key in step.features if name.endswith(f".{key}")}
    )
