"""What is looked at for a named environment alone, since it takes longer: a GPU from inside its image."""

from __future__ import annotations

from vlalab.doctor.checks.docker import NONE, about
from vlalab.doctor.checks.nvidia import NO_GPU, devices
from vlalab.doctor.types import FAIL, Case, Check, Finding, fail, ok, skip
from vlalab.engine import docker, images


def gpu_inside(case: Case) -> Finding:
    """Runs nvidia-smi in a container of the environment's image."""
    if not case.environments:
        return skip("asked for a named environment only")
    if not devices(case) or not (info := about(case)):
        return skip(NONE if devices(case) else NO_GPU)
    with_torch = [name for name, one in case.known().items() if one.torch]
    built = [name for name in with_torch if name in images.found(with_torch)]
    if not built:
        return skip("its image is not built")
    said = case.machine.run(
        "docker", "run", "--rm", "--gpus", "all", images.reference(built[0]), "nvidia-smi", "-L", limit_s=28.0
    )
    if said is None or said.code != 0:
        words = (said.err if said else "").strip().splitlines() or ["it says nothing"]
        return fail(
            f"a container of {built[0]} sees no GPU: {words[-1]}",
            hint=docker.advice(words[-1]) or docker.why_no_gpu(info),
        )
    return ok(f"{len(said.out.splitlines())} GPUs in a container of {built[0]}")


CHECKS = (
    Check("gpu-in-container", "GPU in a container", "A service in a container would compute on the CPU.", FAIL,
          "sudo systemctl restart docker", gpu_inside, needs="torch", named_limit_s=30.0),
)  # fmt: skip
