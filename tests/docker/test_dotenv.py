"""`.env` read by the host tool and by the Compose plugin that the engine comes with: the same values."""

import pytest

from tests.host.test_dotenv import CASES, PROCESS, composes, ours

pytestmark = pytest.mark.docker


def test_compose_and_the_host_tool_read_dotenv_alike(engine, tmp_path, monkeypatch):
    for name, value in PROCESS.items():
        monkeypatch.setenv(name, value)
    read = composes(tmp_path, CASES)
    assert read == CASES
    assert read == {text: ours(tmp_path, text) for text in CASES}
