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
    writer = WRITERS.get(type(value))
    if writer is None:
        raise TypeError(f"{type(value).__name__} {value!r} cannot stand in bytecode")
    writer(value, out, seen)


def _write_constant(value, out, seen) -> None:
    out += CONSTANTS[value]


def _write_int(value: int, out: bytearray, seen) -> None:
    if -(2**31) <= value < 2**31:
        out += b"i" + struct.pack("<i", value)
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


def _refer(value: str | bytes, out: bytearray, seen: dict) -> bool:
    """Appends a reference where `value` was written before, else gives it the next number. Returns which it did."""
    if value in seen:
        out += b"r" + struct.pack("<I", seen[value])
        return True
    seen[value] = len(seen)
    return False


def _write_str(value: str, out: bytearray, seen: dict) -> None:
    if _refer(value, out, seen):
        return
    data = value.encode("utf-8", "surrogatepass")
    kind = b"u" if not value.isascii() else b"z" if len(data) < 256 else b"a"
    out.append(kind[0] | FLAG_REF)
    out += bytes([len(data)]) if kind == b"z" else struct.pack("<I", len(data))
    out += data


def _write_bytes(value: bytes, out: bytearray, seen: dict) -> None:
    if not _refer(value, out, seen):
        out.append(ord("s") | FLAG_REF)
        out += struct.pack("<I", len(value)) + value


def _write_tuple(value: tuple, out: bytearray, seen: dict) -> None:
    out += b")" + bytes([len(value)]) if len(value) < 256 else b"(" + struct.pack("<I", len(value))
    for item in value:
        _write(item, out, seen)


def _write_frozenset(value: frozenset, out: bytearray, seen: dict) -> None:
    out += b">" + struct.pack("<I", len(value))
    for item in sorted(value, key=dumps):
        _write(item, out, seen)


def _write_code(code: types.CodeType, out: bytearray, seen: dict) -> None:
    numbers = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_nlocals, code.co_stacksize)
    out += b"c" + struct.pack("<6i", *numbers, code.co_flags)
    for part in (code.co_code, code.co_consts, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars):
        _write(part, out, seen)
    _write(code.co_filename, out, seen)
    _write(code.co_name, out, seen)
    out += struct.pack("<i", code.co_firstlineno)
    _write(code.co_linetable, out, seen)


WRITERS = {
    type(None): _write_constant, bool: _write_constant, type(...): _write_constant,
    int: _write_int, float: _write_float, complex: _write_complex, str: _write_str, bytes: _write_bytes,
    tuple: _write_tuple, frozenset: _write_frozenset, types.CodeType: _write_code,
}  # fmt: skip
