"""Messages keep values bit for bit, and nothing malformed gets through."""

import random
import struct

import msgpack
import numpy as np
import pytest
from fakes import observe, picture

from vla_contract import ActionChunk, InvalidObservation, Observation
from vla_contract.protocol.codec import pack, unpack
from vla_contract.protocol.messages import (
    decode_chunk,
    decode_observation,
    decode_reset,
    encode_chunk,
    encode_observation,
)
from vla_contract.protocol.plain import DTYPES


def arrays():
    rng = np.random.default_rng(0)
    for name, dtype in DTYPES.items():
        for shape in ((), (0,), (3,), (2, 0, 4), (5, 4, 3)):
            size = int(np.prod(shape)) * dtype.itemsize
            raw = rng.integers(0, 2, size, np.uint8) if name == "|b1" else rng.integers(0, 256, size, np.uint8)
            yield np.frombuffer(raw.tobytes(), dtype).reshape(shape)


@pytest.mark.parametrize("array", list(arrays()), ids=lambda a: f"{a.dtype.str}{list(a.shape)}")
def test_arrays_return_bit_for_bit(array):
    back = unpack(pack({"x": [array]}))["x"][0]
    assert (back.dtype, back.shape, back.tobytes()) == (array.dtype, array.shape, array.tobytes())
    assert not back.flags.writeable


def test_any_memory_layout_travels():
    array = np.arange(24.0).reshape(2, 3, 4)
    for view in (array.T, array[:, ::-1], array[..., ::2], np.asfortranarray(array), array.astype(">f8")):
        assert np.array_equal(unpack(pack(view)), view)


def test_decoding_does_not_copy_pixels():
    back = decode_observation(encode_observation(observe())).images["agentview"]
    owner = back
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    assert isinstance(owner.base, bytes)


def test_observations_return_as_sent():
    sent = observe(
        step=7,
        images={"agentview": picture(), "wrist": picture(1)[::-1, ::-1]},
        state=np.arange(8, dtype=np.float32),
        unnorm_key="libero_goal",
        privileged={"a": {"b": [1, 2.5, None, True, "ü", np.eye(3)]}, "n": np.int32(4), "t": (1, 2)},
    )
    back = decode_observation(encode_observation(sent))
    assert all(np.array_equal(back.images[name], sent.images[name]) for name in sent.images)
    assert np.array_equal(back.state, sent.state)
    assert (back.session, back.step, back.instruction, back.unnorm_key) == ("s", 7, sent.instruction, "libero_goal")
    assert np.array_equal(back.privileged["a"]["b"].pop(), np.eye(3))
    assert back.privileged == {"a": {"b": [1, 2.5, None, True, "ü"]}, "n": 4, "t": [1, 2]}


def test_chunks_return_as_sent():
    chunk = ActionChunk(np.random.default_rng(0).normal(size=(8, 7)).astype(np.float32), {"generate": 3.5})
    back = decode_chunk(encode_chunk(chunk, lambda: {"infer": 4.0}))
    assert np.array_equal(back.actions, chunk.actions)
    assert back.timings_ms == {"generate": 3.5, "infer": 4.0}


def nd(dtype, shape, raw):
    return {"__nd__": [dtype, shape, raw]}


MALFORMED = {
    "empty": b"",
    "text": b"hello world",
    "json": b'{"images": {}}',
    "never used byte": b"\xc1",
    "truncated": encode_observation(observe())[:-5],
    "trailing": encode_observation(observe()) + b"\x00",
    "array claims 4 G items": b"\xdd\xff\xff\xff\xff",
    "map claims 4 G items": b"\xdf\xff\xff\xff\xff",
    "bin claims 4 GB": b"\xc6\xff\xff\xff\xff",
    "nested 100000 deep": b"\x91" * 100_000 + b"\xc0",
    "nested maps": b"\x81\xa1x" * 2000 + b"\xc0",
    "many small maps": b"\xdc\x0f\xa0" + (b"\xdc\x00\x20" + b"\x80" * 32) * 4000,
    "long text": msgpack.packb("x" * 70_000),
    "invalid UTF-8": b"\xa2\xff\xfe",
    "extension": msgpack.packb(msgpack.ExtType(4, b"payload")),
    "int keys": msgpack.packb({1: 2}),
    "bytes keys": msgpack.packb({b"a": 2}, use_bin_type=True),
    "object dtype": msgpack.packb(nd("|O", [1], b"\x00" * 8)),
    "structured dtype": msgpack.packb(nd([["a", "<f4"]], [1], b"\x00" * 4)),
    "text dtype": msgpack.packb(nd("<U4", [1], b"\x00" * 16)),
    "date dtype": msgpack.packb(nd("<M8[s]", [1], b"\x00" * 8)),
    "big-endian dtype": msgpack.packb(nd(">f4", [1], b"\x00" * 4)),
    "void dtype": msgpack.packb(nd("|V4", [1], b"\x00" * 4)),
    "dtype is a number": msgpack.packb(nd(3, [1], b"\x00" * 4)),
    "too few bytes": msgpack.packb(nd("<f4", [2, 2], b"\x00" * 15)),
    "too many bytes": msgpack.packb(nd("<f4", [2, 2], b"\x00" * 17)),
    "negative side": msgpack.packb(nd("|u1", [-1, -4], b"\x00" * 4)),
    "overflowing shape": msgpack.packb(nd("|u1", [2**31, 2**31, 4], b"")),
    "sides that overflow to zero": msgpack.packb(nd("|u1", [2**32, 2**32], b"")),
    "fractional side": msgpack.packb(nd("|u1", [2.0, 2.0], b"\x00" * 4)),
    "bool side": msgpack.packb(nd("|u1", [True, 4], b"\x00" * 4)),
    "shape is a number": msgpack.packb(nd("|u1", 4, b"\x00" * 4)),
    "nine dimensions": msgpack.packb(nd("|u1", [1] * 9, b"\x00")),
    "data is text": msgpack.packb(nd("|u1", [4], "abcd")),
    "no array": msgpack.packb({"__nd__": None}),
    "two parts": msgpack.packb({"__nd__": ["|u1", [1]]}),
}


@pytest.mark.parametrize("body", MALFORMED.values(), ids=list(MALFORMED))
def test_malformed_messages_are_refused(body):
    with pytest.raises(InvalidObservation):
        unpack(body)


FIELDS = msgpack.unpackb(encode_observation(observe()))
WRONG_FIELDS = {
    "a list": [1],
    "a number": 3,
    "no images": {k: v for k, v in FIELDS.items() if k != "images"},
    "no session": {k: v for k, v in FIELDS.items() if k != "session"},
    "unknown field": {**FIELDS, "imagse": {}},
    "images is an array": {**FIELDS, "images": nd("|u1", [1], b"\x00")},
    "a picture of floats": {**FIELDS, "images": {"a": nd("<f4", [1, 1, 3], b"\x00" * 12)}},
    "bytes inside privileged": {**FIELDS, "privileged": {"x": b"abc"}},
    "a timestamp inside privileged": {**FIELDS, "privileged": {"x": msgpack.Timestamp(1, 0)}},
    "step is a text": {**FIELDS, "step": "0"},
    "step is huge": {**FIELDS, "step": 2**40},
    "NaN in state": {**FIELDS, "state": nd("<f4", [1], struct.pack("<f", float("nan")))},
    "state is a list": {**FIELDS, "state": [0.0]},
}


@pytest.mark.parametrize("fields", WRONG_FIELDS.values(), ids=list(WRONG_FIELDS))
def test_wrong_fields_are_refused(fields):
    with pytest.raises(InvalidObservation):
        decode_observation(msgpack.packb(fields))


def test_a_close_field_is_suggested():
    with pytest.raises(InvalidObservation, match="did you mean 'unnorm_key'"):
        decode_observation(msgpack.packb({**FIELDS, "unnorm_keys": "x"}))


@pytest.mark.parametrize("seed", range(40))
def test_damaged_messages_never_end_otherwise(seed):
    """Every flipped, cut or spliced message is either refused or a valid observation; nothing else is raised."""
    rng = random.Random(seed)
    whole = encode_observation(
        observe(privileged={"a": [1, 2.0, "t", None, np.eye(2)], "b": {"c": True}}, state=np.zeros(3, np.float32))
    )
    refused = 0
    for _ in range(60):
        damaged = bytearray(whole)
        for _ in range(rng.randint(1, 6)):
            kind, at = rng.randrange(4), rng.randrange(len(damaged))
            if kind == 0:
                damaged[at] ^= 1 << rng.randrange(8)
            elif kind == 1:
                del damaged[at : at + rng.randint(1, 40)]
            elif kind == 2:
                damaged[at:at] = rng.randbytes(rng.randint(1, 9))
            else:
                damaged[at] = rng.choice([0xC1, 0xC6, 0xC9, 0xDD, 0xDF, 0xD9, 0x91, 0x81, 0xC0])
            damaged = damaged or bytearray(b"\xc0")
        try:
            assert isinstance(decode_observation(bytes(damaged)), Observation)
        except InvalidObservation:
            refused += 1
    assert refused > 0


@pytest.mark.parametrize("seed", range(5))
def test_noise_is_refused(seed):
    rng = random.Random(seed)
    for _ in range(200):
        with pytest.raises(InvalidObservation):
            decode_observation(rng.randbytes(rng.randint(1, 200)))


@pytest.mark.parametrize("value", [object(), {"x": {3}}, np.array([object()]), np.zeros(1, "M8[s]"), 2**70])
def test_what_is_not_plain_is_not_sent(value):
    with pytest.raises(InvalidObservation):
        pack(value)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"session": ""},
        {"session": 1},
        {"session": "a", "x": 1},
        ["session"],
        {"session": "a", "prefix": "a"},
        {"prefix": ""},
    ],
)
def test_wrong_resets_are_refused(fields):
    with pytest.raises(InvalidObservation):
        decode_reset(msgpack.packb(fields))


@pytest.mark.parametrize(
    "fields",
    [{}, {"actions": [0.0] * 7}, {"actions": nd("<f4", [7], b"\0" * 28)}, {"actions": nd("<f8", [1, 7], b"\0" * 56)}],
)
def test_wrong_answers_are_refused(fields):
    with pytest.raises(ValueError):
        decode_chunk(msgpack.packb(fields))


def test_privileged_state_reaches_only_a_policy_that_needs_it():
    whole = observe(privileged={"eef_pos": np.zeros(3), "names": ["a"] * 100})
    body = encode_observation(whole)
    assert decode_observation(body).privileged["names"] == ["a"] * 100
    without = decode_observation(body, privileged=False)
    assert without.privileged is None and np.array_equal(without.images["agentview"], whole.images["agentview"])
    hostile = msgpack.packb({**msgpack.unpackb(body), "privileged": [[]] * 300_000})
    for privileged in (True, False):
        with pytest.raises(InvalidObservation):
            decode_observation(hostile, privileged)


@pytest.mark.parametrize("cut", range(0, 60, 7))
def test_bodies_that_are_no_map_are_refused(cut):
    body = encode_observation(observe())
    for bad in (
        body[: len(body) - cut - 1],
        body + b"x",
        b"\xc1",
        b"\x81",
        b"\x81\x01\x02",
        b"\xdf\xff\xff\xff\xff",
        b"",
    ):
        with pytest.raises(InvalidObservation):
            decode_observation(bad)
