"""Each image, built for real from its lock by `./lab build`, and what an admin may rely on about it."""

import json
import re

import pytest

from tests.docker.builds import GROUPS, NIGHTLY
from vlalab.engine import docker, images
from vlalab.environments import venvs
from vlalab.host import paths, shared_code

pytestmark = pytest.mark.docker
ORDER = [name for group in GROUPS for name in group]
ALL = [*ORDER, *(pytest.param(name, marks=pytest.mark.nightly) for name in NIGHTLY)]


def test_every_image_is_built_and_tested():
    assert sorted({name.partition("-")[0] for name in (*ORDER, *NIGHTLY)}) == images.buildable()


@pytest.fixture(scope="module", params=ALL)
def name(request, builds):
    """The name of an environment whose image was built."""
    builds.get(request.param)
    return request.param


@pytest.fixture(scope="module")
def looked(name, lab):
    """What a program found in the image, run as a user that the image does not know: see LOOK."""
    done = lab.run_in(name, "python", "-c", LOOK)
    assert done.code == 0, done.text
    return json.loads(done.stdout.splitlines()[-1])


LOOK = """
import json, re, subprocess
from importlib.metadata import distributions
words = ["find", "/opt", "-xdev", "(", "-perm", "/o+w", "-o", "-not", "-user", "0", ")", "-not", "-type", "l", "-print"]
find = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
print(json.dumps({
    "about": json.load(open("/opt/vla-lab/image.json")),
    "packages": [(re.sub(r"[-_.]+", "-", d.metadata["Name"]).lower(), d.version) for d in distributions()],
    "changeable": (find.returncode, find.stdout),
}))
"""


def test_it_says_what_it_was_built_from(name, lab, builds, looked):
    labels, (env, _, variant) = lab.image(name)["Config"]["Labels"], name.partition("-")
    assert (labels["vla-lab.env"], labels["vla-lab.variant"]) == (env, variant)
    assert labels["vla-lab.lock"] == venvs.get(name, paths.ROOT).lock_hash
    assert labels["org.opencontainers.image.revision"] == builds.commits[name]
    assert labels["org.opencontainers.image.version"] == shared_code.version()
    about = looked["about"]
    assert (about["env"], about["variant"], about["lock"]) == (env, variant, labels["vla-lab.lock"])
    assert about["flash_attn"]["mode"] == labels["vla-lab.flash-attn"] == "none"


def test_it_starts_as_nobody_in_particular(name, lab):
    config = lab.image(name)["Config"]
    assert config["User"] == "1000:1000"
    assert isinstance(config["Cmd"], list) and config["Cmd"][0] == "python"
    assert not config.get("ExposedPorts") and not config.get("Volumes")


def test_its_self_test_ran_when_it_was_built_and_passes_for_any_user_with_a_read_only_root(name, lab, builds):
    env = name.partition("-")[0]
    assert f"selftest.py {env}" in builds.words[name]
    again = lab.run_in(name, "python", "images/common/selftest.py", env, "--json")
    assert again.code == 0, again.text
    checks = json.loads(again.stdout)["checks"]
    assert {"versions", "imports"} <= set(checks) and all(check["ok"] for check in checks.values())


def test_every_pin_of_its_lock_is_what_is_installed(name, looked):
    installed = dict(looked["packages"])
    lock = venvs.get(name, paths.ROOT).lock.read_text()
    pins = pinned(lock)
    assert pins and set(installed) <= set(pins) | {"pip", "setuptools"}
    assert set(re.findall(r"(?m)^([\w.-]+)(?:\[[^\]]*\])?==[^\s;]+ \\$", lock)) <= set(installed), (
        "pins without a marker"
    )
    assert {name: version for name, version in installed.items() if version not in pins.get(name, version)} == {}


def test_what_gr00t_and_ws_mdl_have_in_common_came_once_and_is_one_layer(builds):
    builds.get("gr00t"), builds.get("ws_mdl")
    together = zip(builds.layers["gr00t"], builds.layers["ws_mdl"], strict=False)
    assert [ours == theirs for ours, theirs in together][:5] == [True] * 4 + [False], (
        "base, python, system, nvidia, torch"
    )
    assert builds.words["gr00t"].count(" Downloaded nvidia-cudnn-cu12") <= 1, "none where an engine had it"


def test_what_ws_mdl_and_hf_have_in_common_is_two_layers(builds):
    builds.get("ws_mdl"), builds.get("hf")
    together = zip(builds.layers["ws_mdl"], builds.layers["hf"], strict=False)
    assert [ours == theirs for ours, theirs in together][:6] == [True] * 5 + [False], "torch's is the fifth"


def pinned(lock: str) -> dict[str, set[str]]:
    """Returns the versions a lock names for each package: more than one where Python versions differ."""
    pins: dict[str, set[str]] = {}
    for name, version in re.findall(r"(?m)^([\w.-]+)(?:\[[^\]]*\])?==([^\s;]+)", lock):
        pins.setdefault(name, set()).add(version)
    return pins


def test_nothing_in_it_can_be_changed_by_whom_it_runs_as(looked):
    assert looked["changeable"] == [0, ""]


def test_nothing_of_the_build_secrets_stays(name, lab, builds):
    assert builds.secrets.ca.read_text().startswith("# vlalab-"), "there is something to find"
    found = lab.run_in(name, *builds.secrets.search(), user="0:0")
    assert (found.code, found.text) == (0, "")
    reference = images.reference(name, lab.name)
    said = docker.run(["history", "--no-trunc", reference]).stdout + json.dumps(lab.image(name))
    assert [mark for mark in builds.secrets.marks if mark in said] == []


def test_its_own_tests_pass_inside_it(name, beside):
    done = beside.result(name)
    assert done.code == 0 and " 0 failed" in done.text.splitlines()[-1], done.text
