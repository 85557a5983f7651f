"""Compose's rules for variables and forms, as the local runtime reads them."""

import pytest

from vlalab.description import compose
from vlalab.host import state
from vlalab.host.console import LabError

KNOWN = ("--services", "--policies")

VARIABLES = {"SET": "value", "EMPTY": "", "OTHER": "b"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", "plain"),
        ("$SET and ${SET}", "value and value"),
        ("$$SET costs $$5", "$SET costs $5"),
        ("${EMPTY:-default}", "default"),
        ("${EMPTY-default}", ""),
        ("${MISSING-default}", "default"),
        ("${SET:-default}", "value"),
        ("${MISSING}", ""),
        ("${MISSING:-${OTHER:-x}}/y", "b/y"),
        ("${MISSING:-${GONE:-x}}", "x"),
        ("${SET:+other}", "other"),
        ("${EMPTY:+other}", ""),
        ("${EMPTY+other}", "other"),
        ("${SET:?is needed}", "value"),
        ("${OTHER}:${OTHER}", "b:b"),
        ("${MISSING:-http://[::1]:80/a?b=c}", "http://[::1]:80/a?b=c"),
    ],
)
def test_interpolation_follows_compose(text, expected):
    assert compose.interpolate(text, VARIABLES) == expected


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("${MISSING:?set it in .env}", "MISSING: set it in .env"),
        ("${EMPTY:?}", "EMPTY"),
        ("${SET", "without a valid name"),
        ("${SET%suffix}", "without a valid name"),
        ("a $ sign", "$$ for a dollar"),
    ],
)
def test_what_cannot_be_filled_is_an_error(text, says):
    with pytest.raises(LabError, match="compose.yaml") as caught:
        compose.interpolate(text, VARIABLES)
    assert says in str(caught.value)


@pytest.mark.parametrize(("text", "value"), [("10s", 10), ("1m30s", 90), ("500ms", 0.5), ("1h", 3600), ("1.5s", 1.5)])
def test_durations(text, value):
    assert compose.seconds(text) == pytest.approx(value)


def write(directory, body: str):
    path = directory / "compose.yaml"
    path.write_text("services:\n  one:\n" + "".join(f"    {line}\n" for line in body.splitlines()))
    return path


def test_a_service_is_read_with_its_variables(tmp_path):
    path = write(
        tmp_path,
        """x-local: tiny
command: python -m this --port "${ONE_PORT:-8001}"
environment: {A: 1, B: "${B:-two}"}
ports: ["127.0.0.1:${ONE_PORT:-8001}:9"]
volumes: [{type: bind, source: ./data, target: /volume, read_only: true}]
healthcheck: {test: [CMD, "true"], timeout: 1s}
stop_grace_period: 3s
labels: {vla-lab.role: policy}""",
    )
    one = compose.read(path, {"ONE_PORT": "7000"})["one"]
    assert one.command == ("python", "-m", "this", "--port", "7000")
    assert one.environment == {"A": "1", "B": "two"}
    assert one.ports == (compose.Port("127.0.0.1", 7000, 9),)
    assert one.mounts == (("./data", "/volume"),)
    assert (one.health.test, one.health.timeout_s) == (("true",), 1.0)
    assert (one.stop_grace_s, one.role, one.environment_name, one.restart) == (3.0, "policy", "tiny", "no")


@pytest.mark.parametrize(("known", "expected"), [({}, {}), ({"B": "2"}, {"B": "2"}), ({"B": ""}, {"B": ""})])
def test_a_variable_without_a_value_is_the_callers_own_or_not_set(tmp_path, known, expected):
    path = write(tmp_path, "x-local: tiny\nenvironment: {A: 1, B: }")
    assert compose.read(path, known)["one"].environment == {"A": "1", **expected}


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("command: x", "x-local"),
        ("x-local: tiny\nports: ['8001']", "address:port:port"),
        ("x-local: tiny\nvolumes: ['./data:/volume']", "has mount"),
        ("x-local: tiny\nvolumes: [{type: volume, source: data, target: /volume}]", "has mount"),
        ("x-local: tiny\nhealthcheck: {test: curl x}", "health check"),
        ("x-local: tiny\nextends: other", "extends"),
        ("x-local: tiny\nenvironment: [A=1]", "list of variables"),
    ],
)
def test_forms_the_local_runtime_cannot_run_are_named(tmp_path, body, says):
    with pytest.raises(LabError, match=says):
        compose.read(write(tmp_path, body), {})


def test_dotenv_gives_defaults_that_the_process_overrules(tmp_path, monkeypatch):
    (tmp_path / ".env").write_text("# a comment\nA=1\nexport B='two words'\nC=x # why\nVLALAB_TEST_D=file\n")
    monkeypatch.setenv("VLALAB_TEST_D", "process")
    found = compose.environment_variables(tmp_path)
    assert {name: found[name] for name in ("A", "B", "C", "VLALAB_TEST_D")} == {
        "A": "1", "B": "two words", "C": "x", "VLALAB_TEST_D": "process",
    }  # fmt: skip


# --- what a service needs -----------------------------------------------------------------------------------

TWO = """services:
  page:
    x-local: tiny
    command: [serve, "${PAGE_ASKS:-http://model:8000}"]
    depends_on: {model: {condition: service_healthy}, store: {condition: service_started}}
  model: {x-local: tiny, depends_on: [store]}
  store: {x-local: tiny}
"""


@pytest.mark.parametrize(
    ("asks", "order"),
    [
        ("", ["store", "model", "page"]),
        ("http://other:1", ["store", "page"]),
        ("http://model:9", ["store", "model", "page"]),
    ],
)
def test_a_service_comes_after_what_it_needs(tmp_path, asks, order):
    path = tmp_path / "compose.yaml"
    path.write_text(TWO)
    assert compose.needs("page", path, {"PAGE_ASKS": asks}) == order
    assert compose.needs("store", path, {}) == ["store"]


def test_the_project_is_the_callers_and_the_clones_unless_a_variable_names_another(monkeypatch):
    monkeypatch.setattr(compose, "environment_variables", lambda: dict(named))
    named: dict[str, str] = {}
    assert compose.project() == f"vla-lab-{state.owner()}"
    named["VLALAB_PROJECT"] = "ours"
    assert compose.project() == "ours"
    named["COMPOSE_PROJECT_NAME"] = "mine"
    assert compose.project() == "mine"


def test_the_site_knows_every_service_and_its_first_page_every_policy():
    services = compose.read(variables={})
    command = services["ui"].command
    known = {flag: dict(pair.split("=", 1) for pair in command[command.index(flag) + 1].split(",")) for flag in KNOWN}
    addresses = {
        name: f"http://{name}:{service.ports[0].target}" for name, service in services.items() if service.ports
    }
    assert known["--services"] == {name: url for name, url in addresses.items() if name != "ui"}
    simulator = services["simulator"].command
    general = {pair.split("=")[0] for pair in simulator[simulator.index("--policies") + 1].split(",")}
    of_one_benchmark = ("metaworld", "pusht", "aloha")
    assert general == {name for name in known["--policies"] if not name.startswith(of_one_benchmark)}
    assert "openvla" in general
    assert known["--policies"] == {name: url for name, url in addresses.items() if services[name].role == "policy"}
