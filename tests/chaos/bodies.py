"""Bodies for a policy service: a valid one, and what the seed makes of it."""

from __future__ import annotations

import base64
import copy
import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import msgpack
import numpy as np

MSGPACK, JSON = "application/msgpack", "application/json"
DTYPES = ["|u1", "<i4", "<f4", "<f8"]  # of arrays whose numbers are changed
DEEP_LISTS = b"\x91" * 990 + b"\xc0"  # as deep as msgpack reads: a recursion over it ends in an error
SHORT_TEXTS = b"\xdc\x02\x00" + (b"\xdc\x10\x00" + b"\xa2ab" * 4096) * 512  # 6 MB that would become 140
HOSTILE = (
    None, True, False, 0, -1, 2**31, 2**63 - 1, -(2**63), 2**64 - 1, 0.5, float("nan"), float("inf"), -float("inf"),
    1e308,
    "", "x", "x" * 5000, "\x00", "\x1b[31m", "\u202e", "\ud800", "' OR 1", "../../etc/passwd", "<image-9>", "é" * 3000,
    b"", b"\xff" * 10, [], {}, [[]], [None] * 5000, {"__nd__": None}, {"__nd__": ["|O", [1], b"12345678"]},
    {"__nd__": ["<f4", [-1], b""]}, {"__nd__": ["<f4", [2**31, 2**31, 2**31], b""]}, {"__nd__": ["<f8", [0], b""]},
    {"__nd__": ["|u1", [1, 1, 3], b"abc"]}, {"__nd__": ["<f8", [1], b"\x00\x00\x00\x00\x00\x00\xf8\x7f"]},
)  # fmt: skip
JSON_TEXTS = (
    b"", b"{", b"null", b"[]", b"NaN", b'"\\ud800"', b"{}", b"[" * 50_000, b'{"a":' * 50_000, b"1e999", b"9" * 6000,
    b"\xff\xfe{}",
    b"\xef\xbb\xbf{}", b'{"image": NaN}', b'{"encoded": "{"}', b'{"encoded": 1}', b'{"encoded": "[]", "image": 1}',
    b"[" * 980 + b"]" * 980, b'{"image": "\\udfff"}', b'{"image": 1e999}',
)  # fmt: skip
MSGPACK_BYTES = (
    b"", b"\xc1", b"\xdf\xff\xff\xff\xff", b"\xdd\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff",
    b"\x91" * 5000,
    b"\x81\xa1a" * 3000 + b"\xc0", b"\xc7\x01\x05a", b"\xd4\x01a", b"\x80", b"\x90", b"\xc0", b"{}",
    b"\xcb\x7f\xf8\x00\x00\x00\x00\x00\x00",
    b"\x84\xa6images\x80\xabinstruction" + DEEP_LISTS + b"\xa7session\xa1a\xa4step\x00",
    b"\x84\xa6images\x80\xabinstruction\xa1a\xa7session\xa1a\xa4step" + DEEP_LISTS, b"\x81\xa6images" + SHORT_TEXTS,
)  # fmt: skip


@dataclass(frozen=True)
class Body:
    """One request: where to, what with, and how it came about."""

    route: str
    data: bytes
    media_type: str
    how: str
    method: str = "POST"
    headers: dict[str, str] = field(default_factory=dict)


def valid_tree(info: dict, draw: random.Random, example: dict | None) -> dict:
    """Return a valid observation for a policy that describes itself so; `example` overrides fields."""
    height, width = info["image_hw"] or (16, 16)
    pixels = np.full((height, width, 3), draw.randrange(256), np.uint8)
    tree = {
        "images": {name: pixels for name in info["cameras"]},
        "instruction": "put the bowl on the stove",
        "session": f"chaos-{draw.getrandbits(64):x}",
        "step": 0,
        **({"state": np.zeros(sum(part["size"] for part in info["state"]), np.float32)} if info["state"] else {}),
        **({"unnorm_key": info["unnorm_keys"][0]} if info["unnorm_keys"] else {}),
        **(example or {}),
    }
    return msgpack.unpackb(msgpack.packb(tree, default=_array), strict_map_key=False)


def valid_json(info: dict, draw: random.Random) -> dict:
    """Return a valid body of /act."""
    height, width = info["image_hw"] or (16, 16)
    data = base64.b64encode(bytes([draw.randrange(256)]) * (height * width * 3)).decode()
    image = {"__numpy__": data, "dtype": "|u1", "shape": [height, width, 3]}
    key = {"unnorm_key": info["unnorm_keys"][0]} if info["unnorm_keys"] else {}
    return {"image": image, "instruction": "put the bowl on the stove", **key}


def _array(value: object) -> object:
    if isinstance(value, np.ndarray):
        return {"__nd__": [value.dtype.str, list(value.shape), np.ascontiguousarray(value).tobytes()]}
    raise TypeError(type(value))


def pack(tree: object) -> bytes:
    """Return any tree as msgpack, texts that are no UTF-8 included."""
    return msgpack.packb(tree, unicode_errors="surrogatepass")


# --- changes to a tree --------------------------------------------------------------------------------------


def places(tree: object) -> list[tuple[object, object]]:
    """Return (container, key) of every node below the root."""
    paths: list[tuple[object, object]] = []
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        paths.append((tree, key))
        paths += places(value)
    return paths


def drop(tree: dict, draw: random.Random) -> None:
    container, key = draw.choice(places(tree))
    del container[key]


def replace(tree: dict, draw: random.Random) -> None:
    container, key = draw.choice(places(tree))
    container[key] = copy.deepcopy(draw.choice(HOSTILE))


def swap(tree: dict, draw: random.Random) -> None:
    (first, a), (other, b) = draw.choice(places(tree)), draw.choice(places(tree))
    first[a], other[b] = copy.deepcopy(other[b]), copy.deepcopy(first[a])


def add(tree: dict, draw: random.Random) -> None:
    names = ("extra", "unnorm_keys", "unorm_key", "Images", "__nd__", "", "\ud800", "state ", "a" * 300)
    containers = [tree, *(c[k] for c, k in places(tree) if isinstance(c[k], dict))]
    draw.choice(containers)[draw.choice(names)] = copy.deepcopy(draw.choice(HOSTILE))


def numbers(tree: dict, draw: random.Random) -> None:
    """Write extreme numbers into an array's bytes, its type and shape left as they are."""
    arrays = [c for c, k in places(tree) if k == "__nd__" and isinstance(c[k], list) and len(c[k]) == 3]
    arrays = [c for c in arrays if c["__nd__"][0] in DTYPES and isinstance(c["__nd__"][2], bytes) and c["__nd__"][2]]
    arrays = [c for c in arrays if len(c["__nd__"][2]) % np.dtype(c["__nd__"][0]).itemsize == 0]
    if not arrays:
        return replace(tree, draw)
    parts = draw.choice(arrays)["__nd__"]
    dtype = np.dtype(parts[0])
    values = np.frombuffer(parts[2], dtype).copy()
    if dtype.kind == "f":
        values[draw.randrange(len(values))] = draw.choice((np.nan, np.inf, -np.inf, 0, -1.0, np.finfo(dtype).max))
    elif dtype.kind in "iu":
        limits = np.iinfo(dtype)
        values[draw.randrange(len(values))] = draw.choice((limits.min, limits.max, 0))
    parts[2] = values.tobytes()
    return None


DEEP = 13  # no sound message is


def deep(tree: dict, draw: random.Random) -> None:
    container, key = draw.choice(places(tree))
    value: object = 1
    for _ in range(draw.choice((13, 100, 400))):
        value = [value] if draw.random() < 0.5 else {"a": value}
    container[key] = value


TREE_CHANGES: tuple[Callable[[dict, random.Random], None], ...] = (
    drop, replace, replace, replace, swap, add, numbers, numbers, deep,
)  # fmt: skip


def depth(tree: object) -> int:
    """Return how many lists and maps lie within each other, the tree's own among them."""
    level, deepest = [tree], 0
    while level := [node for node in level if isinstance(node, (dict, list))]:
        level = [child for node in level for child in (node.values() if isinstance(node, dict) else node)]
        deepest += 1
    return deepest


def changed(tree: dict, draw: random.Random) -> str:
    """Changes a tree in one to three places; returns how. One that has become deep is not put into itself again."""
    done = []
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        change = draw.choice(TREE_CHANGES)
        if places(tree) and depth(tree) < DEEP:
            change(tree, draw)
            done.append(change.__name__)
    return "+".join(done)


# --- changes to bytes ---------------------------------------------------------------------------------------


def cut(data: bytes, draw: random.Random) -> bytes:
    return data[: draw.randrange(len(data) + 1)]


def flip(data: bytes, draw: random.Random) -> bytes:
    changed_data = bytearray(data)
    for _ in range(draw.choice((1, 1, 2, 8))):
        changed_data[draw.randrange(min(len(data), draw.choice((64, 400, len(data)))))] = draw.randrange(256)
    return bytes(changed_data)


def append(data: bytes, draw: random.Random) -> bytes:
    return data + draw.choice((b"\x00", b"}", b" ", data[:50], draw.randbytes(20)))


BYTE_CHANGES = (cut, flip, flip, append)


def mutated_v1(tree: dict, draw: random.Random) -> Body:
    """Return a mutated body of /v1/act."""
    kind = draw.random()
    if kind < 0.04:
        return Body("/v1/act", draw.choice(MSGPACK_BYTES), MSGPACK, "made-up bytes")
    if kind < 0.08:
        other_type = draw.choice((JSON, "", "text/plain", "a" * 300, "application/msgpackx"))
        return Body("/v1/act", pack(tree), other_type, "type")
    if kind < 0.12:  # a map's key twice: the header says one more pair than there are
        data = pack(tree)
        twice = bytes([data[0] + 1]) + data[1:] + pack("step") + pack(draw.choice(HOSTILE))
        return Body("/v1/act", twice, MSGPACK, "twice")
    if kind < 0.35:
        change = draw.choice(BYTE_CHANGES)
        return Body("/v1/act", change(pack(tree), draw), MSGPACK, change.__name__)
    mutation = changed(tree, draw)
    try:
        return Body("/v1/act", pack(tree), MSGPACK, mutation)
    except (ValueError, OverflowError, TypeError, RecursionError):
        return Body("/v1/act", b"\xc1", MSGPACK, "unpackable")


def mutated_act(payload: dict, draw: random.Random) -> Body:
    """Return a mutated body of /act."""
    kind = draw.random()
    if kind < 0.1:
        return Body("/act", draw.choice(JSON_TEXTS), JSON, "made-up text")
    mutation = "valid"
    if kind > 0.4:
        mutation = changed(payload, draw)
    try:
        text = json.dumps(payload, default=lambda value: value.hex())
    except (ValueError, RecursionError):
        text = "{"
    if draw.random() < 0.15:
        text, mutation = json.dumps({"encoded": text}), mutation + " encoded"
    if draw.random() < 0.08:
        again = json.dumps(draw.choice(("", "\ud800", 1, "x")))
        text, mutation = f'{text[:-1]}, "instruction": {again}}}', "twice"
    data = text.encode("utf-8", "surrogatepass")
    if kind <= 0.4:
        change = draw.choice(BYTE_CHANGES)
        data, mutation = change(data, draw), f"{mutation} {change.__name__}"
    return Body("/act", data, JSON, mutation)


def mutated_reset(draw: random.Random) -> Body:
    """Return a mutated body of /v1/reset."""
    tree = {"session": draw.choice(HOSTILE)} if draw.random() < 0.6 else draw.choice(HOSTILE)
    data = pack(tree)
    return Body("/v1/reset", flip(data, draw) if draw.random() < 0.3 else data, MSGPACK, "reset")


ODD_PATHS = (
    "/", "//v1/act", "/v1/act/", "/v1/act%00", "/v1/../act", "/v1/act?a=1", "/openapi.json", "/docs", "/metrics/x",
    "/%ff", "/" + "a" * 3000,
    "/livez", "/readyz", "/v1/info",
)  # fmt: skip


def other(draw: random.Random) -> Body:
    """Return a request of another method, to another place, or with odd headers."""
    method = draw.choice(("GET", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "TRACE", "FOO"))
    path = draw.choice((*ODD_PATHS, "/v1/act", "/act"))
    odd = draw.choice(
        (
            {}, {"X-Request-Id": "x" * 5000}, {"X-Request-Id": "\x7f;\xe9"}, {"X-Timeout-S": "nan"},
            {"X-Timeout-S": "-1"},
            {"Authorization": "Bearer " + "y" * 3000}, {"Expect": "100-continue"}, {"Accept": "*/*;q=x"},
            {"Cookie": "a=" * 500},
        )
    )  # fmt: skip
    return Body(path, b"", "", f"{method} elsewhere", method, odd)
