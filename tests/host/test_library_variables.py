"""Variables that stop libraries: reported with what to type, without their values, and not passed on to programs."""

import pytest

from vlalab.host.library_variables import unusable
from vlalab.runtimes import containers, local

VARIABLES = {
    "ALL_PROXY": "socks5://anna:secret@proxy.lab:1080",
    "https_proxy": "SOCKS5H://proxy.lab:1080",
    "HF_HUB_DOWNLOAD_TIMEOUT": "abc",
    "HF_HUB_ENABLE_HF_TRANSFER": "1",
}


@pytest.mark.parametrize(("name", "value"), VARIABLES.items())
def test_each_is_named_with_what_to_type_and_without_its_value(name, value):
    (reason,) = unusable({name: value}).values()
    assert name in reason and f"unset {name}" in reason and "secret" not in reason


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HTTPS_PROXY", "http://proxy.lab:3128"),
        ("ALL_PROXY", ""),
        ("HF_HUB_DOWNLOAD_TIMEOUT", "30"),
        ("HF_HUB_ENABLE_HF_TRANSFER", "0"),
    ],
)
def test_usable_ones_are_left_alone(name, value):
    assert unusable({name: value}) == {}


def test_they_are_not_passed_on_to_programs(monkeypatch, capsys):
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HTTP_PROXY", "http://proxy.lab:3128")
    assert not VARIABLES.keys() & local.service_variables().keys()
    assert containers._network().count("HTTP_PROXY") == 1 and "https_proxy" not in containers._network()
    assert capsys.readouterr().err.count("ALL_PROXY names a SOCKS proxy") <= 1
