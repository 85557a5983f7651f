"""Types: counts of errors that only fall, none in the contract's protocol and client, the same on every machine."""

import json

import pytest

from vlalab.host import paths
from vlalab.testing import types

STORED = json.loads(types.STORED.read_text())
(CONTRACT,) = paths.ROOT.glob("shared/*/vla_contract")
ERRORS = [f"lab/a.py:{line}: error: wrong  [misc]" for line in (1, 2)] + ["lab/b.py:1: error: wrong  [misc]"]


def test_the_contracts_protocol_and_client_have_no_type_error():
    strict = [CONTRACT / "protocol", CONTRACT / "client"]
    assert all((directory / "__init__.py").exists() for directory in strict) and (CONTRACT / "py.typed").exists()
    assert not {str(directory.relative_to(paths.ROOT)) for directory in strict} & set(STORED)


def test_every_count_is_of_a_directory_that_exists():
    assert STORED and min(STORED.values()) > 0
    assert [name for name in STORED if not (paths.ROOT / name).is_dir()] == []


@pytest.mark.parametrize(
    ("stored", "printed"),
    [
        ({"lab": 3}, []),
        ({"lab": 2}, [*ERRORS, "lab: 3 type errors; expected at most 2"]),
        ({}, [*ERRORS, "lab: 3 type errors; expected at most 0"]),
        ({"lab": 4, "gone": 1}, [
            "gone: 0 type errors, fewer than the stored 1",
            "lab: 3 type errors, fewer than the stored 4",
        ]),
    ],
)  # fmt: skip
def test_a_count_that_rose_or_fell_is_reported(stored, printed):
    assert types.differences(ERRORS, stored) == printed
