"""openpi's messages: what travels comes back, and nothing else is let in."""

import pickle
import random
from contextlib import suppress

import msgpack
import numpy as np
import pytest

from services.bridge import wire
from services.bridge.wire import ProtocolError, pack, short, unpack
from vla_contract import InvalidObservation
from vla_contract.protocol import codec
from vla_contract.protocol.plain import DTYPES


def array(**changed) -> dict:
    """Returns an array of two numbers as openpi's package writes it, with changes."""
    parts = {b"__ndarray__": True, b"data": bytes(8), b"dtype": "<f4", b"shape": [2]}
    return {**parts, **{name.encode(): value for name, value in changed.items()}}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (3,), (2, 0), (2, 3, 4)])
def test_arrays_come_back_as_they_were(dtype, shape):
    sent = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
    found = unpack(pack({"x": sent, "deep": [{"y": sent[..., ::-1] if shape else sent}]}))
    assert found["x"].dtype == sent.dtype and found["x"].shape == shape and np.array_equal(found["x"], sent)
    assert np.array_equal(found["deep"][0]["y"], sent[..., ::-1] if shape else sent)


def test_texts_numbers_and_numpys_scalars_come_back():
    sent = {"prompt": "stack · 積む", "n": 3, "f": 0.5, "none": None, "flag": True}
    assert unpack(pack({**sent, "one": np.float32(0.5), "two": np.int64(2), "three": np.bool_(True)})) == {
        **sent, "one": 0.5, "two": 2, "three": True,
    }  # fmt: skip


@pytest.mark.parametrize("value", [object(), 1j, {1, 2}, np.array([object()]), np.array(["text"]), np.zeros(2, "V8")])
def test_what_cannot_travel_is_not_sent(value):
    with pytest.raises(InvalidObservation):
        pack({"x": value})


@pytest.mark.parametrize(
    ("frame", "says"),
    [
        ("Traceback (most recent call last):\n  File\nValueError: no\n", "text frame.* ValueError: no"),
        (pickle.dumps({"actions": [0.0]}), "a pickle"),
        (pickle.dumps(np.zeros(3), protocol=5), "a pickle"),
        (b"", "msgpack message"),
        (b"\xc1", "msgpack message"),
        (msgpack.packb([1]), "the message is a list; expected a map"),
        (msgpack.packb({"a": 1}) + b"\0", "msgpack message"),
        (msgpack.packb({b"a": 1}), "has the key b'a'"),
        (msgpack.packb({3: 1}), "msgpack message"),
        (msgpack.packb({"a": msgpack.ExtType(1, b"x")}), "msgpack message"),
        (msgpack.packb({"a": array(dtype="|O")}), "has dtype '|O'; expected one of"),
        (msgpack.packb({"a": array(dtype="|V8")}), "has dtype '|V8'"),
        (msgpack.packb({"a": array(dtype=">f4")}), "has dtype '>f4'"),
        (msgpack.packb({"a": array(dtype=[["x", "<f4"]])}), r"has dtype \[\['x'"),
        (msgpack.packb({"a": array(shape=[3])}), "came with 8 bytes; expected 12"),
        (msgpack.packb({"a": array(shape=[-1])}), "expected integers"),
        (msgpack.packb({"a": array(shape=[2**30] * 8)}), "came with 8 bytes"),
        (msgpack.packb({"a": array(data="text")}), "data is 'text'; expected bytes"),
        (msgpack.packb({"a": {b"__ndarray__": True}}), "has dtype None"),
        (msgpack.packb({"a": {b"__npgeneric__": True, b"data": b"x", b"dtype": "<f4"}}), "data is a bytes"),
        (msgpack.packb({"a": {b"__npgeneric__": True, b"data": 1, b"dtype": "|O"}}), "has dtype '|O'"),
        (msgpack.packb({"a": [[[]] * 4000] * 6}), f"more than {codec.MAX_CONTAINERS}"),
        (msgpack.packb({"a": [0] * 5000}), "msgpack message"),
        (b"\x81\xa1a" + b"\x91" * 2000, "msgpack message"),
        (b"\x81\xa1a" + b"\x91" * 40 + b"\xc0", "msgpack message"),
        (msgpack.packb({"a": [["x"] * 4000] * 51}), f"more than {codec.MAX_VALUES}"),
    ],
)
def test_invalid_message_raises_a_one_line_error(frame, says):
    with pytest.raises(ProtocolError, match=says) as raised:
        unpack(frame)
    assert "\n" not in str(raised.value) and len(str(raised.value)) < 500


def test_a_message_that_is_too_long_is_not_read():
    with pytest.raises(ProtocolError, match="expected at most"):
        unpack(bytes(wire.MAX_BYTES + 1))


def test_damaged_messages_are_refused_and_nothing_else_happens():
    draw = random.Random(7)
    sound = pack({"actions": np.zeros((10, 7)), "server_timing": {"infer_ms": 1.0}, "prompt": "lift"})
    for _ in range(3000):
        damaged = bytearray(sound)
        for _ in range(draw.randint(1, 6)):
            damaged[draw.randrange(len(damaged))] = draw.randrange(256)
        with suppress(ProtocolError):
            assert type(unpack(bytes(damaged[: draw.randint(1, len(damaged))]))) is dict


def test_foreign_error_is_reduced_to_one_printable_line():
    assert short("a\nb: \x1b[31mred\n\n") == "b:  [31mred"
    assert short("") == "(an empty text)" and len(short("x" * 9999)) == 300
