"""Which GPUs a build of torch computes on."""

from types import SimpleNamespace

import pytest

from vla_modelkit.builds import require_built_for, runs_on

TORCH_22 = ["sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90"]  # cu121's wheel


@pytest.mark.parametrize(
    ("architectures", "capability", "runs"),
    [
        (TORCH_22, (8, 0), True), (TORCH_22, (8, 9), True), (TORCH_22, (9, 0), True),
        (TORCH_22, (12, 0), False), (TORCH_22, (10, 0), False), (TORCH_22, (3, 5), False), (TORCH_22, (7, 2), True),
        (["sm_86"], (8, 0), False), (["sm_80", "compute_80"], (12, 0), True), (["compute_90"], (8, 9), False),
        (["sm_90a"], (9, 0), True), (["sm_90a", "compute_90a"], (10, 0), False), (["sm_100f"], (10, 3), True),
        (["sm_100f", "compute_100f"], (12, 0), False), (["sm_120"], (12, 1), True), (["gfx90a"], (9, 0), False),
        ([], (8, 0), False),
    ],
)  # fmt: skip
def test_cudas_rules_for_binaries_and_ptx(architectures, capability, runs):
    assert runs_on(architectures, capability) == runs


def machine(capability: tuple[int, int], architectures: list[str]) -> SimpleNamespace:
    """A torch on a machine with one GPU, as far as it is asked."""
    cuda = SimpleNamespace(
        get_device_capability=lambda device: capability, get_arch_list=lambda: architectures,
        get_device_name=lambda device: "NVIDIA GeForce RTX 5090",
    )  # fmt: skip
    return SimpleNamespace(cuda=cuda, __version__="2.2.0+cu121")


def test_gpu_newer_than_the_build_raises_with_its_capability():
    with pytest.raises(
        ValueError, match=r"torch 2.2.0\+cu121 has no code for this NVIDIA GeForce RTX 5090.*12\.0.*sm_90"
    ):
        require_built_for(machine((12, 0), TORCH_22), "cuda:0")
    require_built_for(machine((8, 9), TORCH_22), "cuda:0")
    require_built_for(machine((12, 0), []), "cuda:0")  # a build that does not say
    require_built_for(None, "cpu")
