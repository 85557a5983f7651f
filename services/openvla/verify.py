"""`python -m services.openvla.verify`: load a checkpoint, run inferences, and report latency, memory and actions.

Modes are ways to run the same checkpoint. `auto` is the service's default; several modes are loaded one after
the other, each in a process of its own, and compared with the first.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import tyro

from services.openvla.options import MODES, VerifySettings
from services.openvla.service.settings import INT8, PREFIX, checkpoint_directory
from vla_common import entrypoint
from vla_common.unreadable import explain
from vla_modelkit.service import from_environment
from vla_modelkit.threads import set_wait_policy


def measure(settings: VerifySettings) -> dict[str, Any]:
    """Measure a mode: load and inference times, memory, actions float [n, 7]."""
    from PIL import Image

    from services.openvla.service.loading import load_policy
    from vla_contract import Observation
    from vla_modelkit.devices import choose_device
    from vla_modelkit.memory import reset_peak, used_bytes

    device = choose_device(settings.device)
    reset_peak(device)
    start = time.perf_counter()
    policy = load_policy(settings)
    load_s, info = time.perf_counter() - start, policy.info()
    if settings.image is not None:
        try:
            image = np.asarray(Image.open(settings.image).convert("RGB"))
        except OSError as error:  # Pillow's own error of an unknown format is one
            raise ValueError(f"--image {settings.image} cannot be read: {explain(settings.image, error)}") from error
    else:  # a colour ramp with a red square
        y, x = np.mgrid[:224, :224]
        image = np.stack((x, y, 224 - x), axis=-1).astype(np.uint8)
        image[80:140, 60:120] = (220, 30, 30)
    timings, actions = [], []
    for step in range(settings.count + 1):  # the first one warms what is shaped by this very image
        images = dict.fromkeys(info.cameras, np.roll(image, step, axis=1))
        state = np.zeros(info.state_size, np.float32) if info.needs_state else None
        key = info.unnorm_keys[0]
        observation = Observation(images, state, settings.instruction, "verify", step, None, key)
        start = time.perf_counter()
        chunk = policy.act([observation])[0]
        if isinstance(chunk, Exception):
            raise chunk
        timings.append({**chunk.timings_ms, "total": (time.perf_counter() - start) * 1e3})
        actions.append(chunk.actions[0].tolist())
    timings = timings[1:]
    split = {stage: float(np.median([timing[stage] for timing in timings])) for stage in timings[0]}
    return {
        "asked": {"unnorm_key": info.unnorm_keys[0], "picture": str(settings.image or "a made-up one"),
                  "instruction": settings.instruction},
        "checkpoint": f"{info.checkpoint.repo} {info.checkpoint.revision}", "device": info.device,
        "quantization": info.quantization, "details": dict(info.details), "load_s": load_s,
        "median_ms": split["total"], "p95_ms": float(np.percentile([timing["total"] for timing in timings], 95)),
        "split_ms": split, "peak_gb": used_bytes(device) / 1e9, "actions": actions[1:],
    }  # fmt: skip


def report(name: str, result: Mapping[str, Any], first: Mapping[str, Any] | None) -> None:
    details, split = result["details"], result["split_ms"]
    print(f"\n{name}: {result['checkpoint']}")
    print(f"  device      {result['device']}, {result['quantization']}, attention {details['attention']}"
          f" ({details['attention_reason']})")  # fmt: skip
    request = result["asked"]
    print(f"  asked       {request['instruction']!r}, picture {request['picture']}, statistics {request['unnorm_key']}")
    print(f"  load        {result['load_s']:.1f} s")
    stages = ", ".join(f"{stage} {ms:.1f}" for stage, ms in split.items() if stage != "total")
    print(f"  inference   median {result['median_ms']:.1f} ms, p95 {result['p95_ms']:.1f} ms ({stages})")
    print(f"  memory      {result['peak_gb']:.2f} GB at most, weights {details['weights_mb']} MB")
    print(f"  action      {np.round(result['actions'][0], 4).tolist()}")
    if first is not None:
        actions, reference = np.array(result["actions"]), np.array(first["actions"])
        ratio = first["median_ms"] / result["median_ms"]
        print(f"  compared    {(actions == reference).mean():.0%} of all numbers equal, largest difference "
              f"{np.abs(actions - reference).max():.3f}, {ratio:.2f} × as fast")  # fmt: skip
        if result["checkpoint"].startswith("random-") and result["actions"] != first["actions"]:
            print("  note        the weights are random, so logits lie close together: half of the numbers is normal")
    if result["quantization"] == "int8":
        print(f"  note        {INT8}")
    if result["quantization"] in ("nf4", "fp4", "int8") and result["device"] == "cpu":
        print("  note        quantised weights on a CPU are for trying: nothing is faster in fewer bits there")


def run(settings: VerifySettings) -> int:
    """Measure every mode and return the exit code. A mode that cannot run is reported and skipped."""
    directory = checkpoint_directory(settings.checkpoint)
    settings = replace(settings, checkpoint=str(directory))
    first, failed = None, 0
    for mode in settings.mode_list:
        # a process of its own: memory is counted from zero and freed for the next mode
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            measured = pool.submit(measure, replace(settings, **MODES[mode]))
        if error := measured.exception():
            print(f"\nmode {mode} failed: {error}")
            failed += 1
            continue
        result = measured.result()
        report(mode, result, first)
        first = first or result
    return 0 if first is not None and (not failed or settings.modes == "all") else 1


def main() -> None:
    """Verify the checkpoint; exit with 0 if every requested mode ran."""
    set_wait_policy()
    default = from_environment(VerifySettings, PREFIX)
    raise SystemExit(run(tyro.cli(VerifySettings, prog="python -m services.openvla.verify", default=default)))


if __name__ == "__main__":
    entrypoint.run(main)
