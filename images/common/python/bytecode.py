"""Bytecode files that depend on their source alone: the same bytes at every build.

Python 3.10's own do not. Marshal notes which objects are shared, which depends on what else the process has loaded, and
writes sets in the order of hashes, some of which are addresses. So modules are marshalled here, into the same format
(version 4, Python 3.10), with strings shared by value and sets in the order of their elements' bytes.

The files are of PEP 552's unchecked kind: an image does not change, so no import looks up its source's date.
"""

from __future__ import annotations

import importlib.util
import struct
import sys
import types
import warnings

UNCHECKED = (0b01).to_bytes(4, "little")
FLAG_REF = 0x80  # the object may be referred to later
CONSTANTS = {None: b"N", True: b"T", False: b"F", Ellipsis: b"."}
# A tag and what follows it, packed: these run for every object of every module.
NUMBERED, NUMBERED_SHORT = struct.Struct("<BI").pack, struct.Struct("<BB").pack
SHORT_INT, CODE, LINE = struct.Struct("<Bi").pack, struct.Struct("<B6i").pack, struct.Struct("<i").pack


def bytecode(source: bytes, path: str) -> bytes | None:
    """Returns the content of the .pyc file for a module at `path`, None where the source is not valid Python."""
    if sys.version_info[:2] != (3, 10):
        raise RuntimeError(f"this writes Python 3.10's bytecode and runs in Python {sys.version.split()[0]}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            code = compile(source, path, "exec", dont_inherit=True, optimize=0)
    except (SyntaxError, ValueError):  # templates and test data, not modules
        return None
    return importlib.util.MAGIC_NUMBER + UNCHECKED + importlib.util.source_hash(source) + dumps(code)


def dumps(value: object) -> bytes:
    """Returns `value`, a code object or a constant of one, in a form that marshal.loads reads."""
    out = bytearray()
    _write(value, out, {})
    return bytes(out)


def _write(value: object, out: bytearray, seen: dict[str | bytes, int]) -> None:
    """Appends `value`; `seen` numbers the strings that were written before."""
    WRITERS[type(value)](value, out, seen)


def _write_constant(value, out, seen) -> None:
    out += CONSTANTS[value]


def _write_int(value: int, out: bytearray, seen) -> None:
    if -(2**31) <= value < 2**31:
        out += SHORT_INT(ord("i"), value)
        return
    digits, rest = [], abs(value)
    while rest:
        digits.append(rest & 0x7FFF)
        rest >>= 15
    count = len(digits) if value > 0 else -len(digits)
    out += b"l" + struct.pack(f"<i{len(digits)}H", count, *digits)


def _write_float(value: float, out: bytearray, seen) -> None:
    out += b"g" + struct.pack("<d", value)


def _write_complex(value: complex, out: bytearray, seen) -> None:
    out += b"y" + struct.pack("<dd", value.real, value.imag)


def _write_str(value: str, out: bytearray, seen: dict) -> None:
    if (number := seen.get(value)) is not None:
        out += NUMBERED(ord("r"), number)
        return
    seen[value] = len(seen)
    data = value.encode("utf-8", "surrogatepass")
    if not value.isascii():
        out += NUMBERED(ord("u") | FLAG_REF, len(data))
    elif len(data) < 256:
        out += NUMBERED_SHORT(ord("z") | FLAG_REF, len(data))
    else:
        out += NUMBERED(ord("a") | FLAG_REF, len(data))
    out += data


def _write_bytes(value: bytes, out: bytearray, seen: dict) -> None:
    if (number := seen.get(value)) is not None:
        out += NUMBERED(ord("r"), number)
        return
    seen[value] = len(seen)
    out += NUMBERED(ord("s") | FLAG_REF, len(value))
    out += value


def _write_tuple(value: tuple, out: bytearray, seen: dict) -> None:
    count = len(value)
    out += NUMBERED_SHORT(ord(")"), count) if count < 256 else NUMBERED(ord("("), count)
    for item in value:
        WRITERS[type(item)](item, out, seen)


def _write_frozenset(value: frozenset, out: bytearray, seen: dict) -> None:
    out += NUMBERED(ord(">"), len(value))
    for item in sorted(value, key=dumps):
        _write(item, out, seen)


def _write_code(code: types.CodeType, out: bytearray, seen: dict) -> None:
    numbers = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_nlocals, code.co_stacksize)
    out += CODE(ord("c"), *numbers, code.co_flags)
    _write_bytes(code.co_code, out, seen)
    for part in (code.co_consts, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars):
        _write_tuple(part, out, seen)
    _write_str(code.co_filename, out, seen)
    _write_str(code.co_name, out, seen)
    out += LINE(code.co_firstlineno)
    _write_bytes(code.co_linetable, out, seen)


class Writers(dict):
    """Type → what writes its values."""

    def __missing__(self, kind: type):
        raise TypeError(f"{kind.__name__} cannot stand in bytecode")


WRITERS = Writers({
    type(None): _write_constant, bool: _write_constant, type(...): _write_constant,
    int: _write_int, float: _write_float, complex: _write_complex, str: _write_str, bytes: _write_bytes,
    tuple: _write_tuple, frozenset: _write_frozenset, types.CodeType: _write_code,
})  # fmt: skip
