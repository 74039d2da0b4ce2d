# SPDX-License-Identifier: Apache-2.0
"""Redirect what one loaded shared object calls: the slots that the dynamic linker filled are filled again, by us.

Only that object is affected; whatever else in the process uses the same symbols goes on with the real ones.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from .errors import EmulatorError

# Relocations that put a symbol's address into a slot: absolute, global data, jump slot (each ABI's ELF supplement).
_SLOT_RELOCATIONS = {"x86_64": frozenset({1, 6, 7}), "aarch64": frozenset({257, 1025, 1026})}
_STRINGS, _SYMBOLS, _RELOCATIONS, _RELOCATION_BYTES = 5, 6, 7, 8
_JUMP_SLOTS, _JUMP_SLOT_BYTES = 23, 2
_LINK_MAP_REQUEST = 2
_READ_WRITE = mmap.PROT_READ | mmap.PROT_WRITE


class _LinkMap(ctypes.Structure):
    _fields_ = [("base", ctypes.c_size_t), ("name", ctypes.c_char_p), ("dynamic", ctypes.c_size_t)]


class _Dynamic(ctypes.Structure):
    _fields_ = [("tag", ctypes.c_int64), ("value", ctypes.c_uint64)]


class _Relocation(ctypes.Structure):
    _fields_ = [("offset", ctypes.c_uint64), ("info", ctypes.c_uint64), ("addend", ctypes.c_int64)]


class _Symbol(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_uint32),
        ("info", ctypes.c_uint8),
        ("other", ctypes.c_uint8),
        ("section", ctypes.c_uint16),
        ("value", ctypes.c_uint64),
        ("size", ctypes.c_uint64),
    ]


class _Slot(NamedTuple):
    symbol: str
    address: int
    addend: int


def imported(library: ctypes.CDLL) -> frozenset[str]:
    """The symbols that a loaded shared object takes from elsewhere, or may take from elsewhere."""
    return frozenset(slot.symbol for slot in _slots(library))


def redirect(library: ctypes.CDLL, functions: Mapping[str, int]) -> frozenset[str]:
    """Let the object call the function at `functions[name]` wherever it calls `name`; return the names it calls.

    The functions must live as long as the object is loaded.
    """
    found = set()
    for slot in _slots(library):
        if slot.symbol in functions:
            _write(slot.address, functions[slot.symbol] + slot.addend)
            found.add(slot.symbol)
    return frozenset(found)


def _slots(library: ctypes.CDLL) -> Iterator[_Slot]:
    kinds = _SLOT_RELOCATIONS.get(platform.machine())
    if kinds is None:
        raise EmulatorError(
            f"shared objects for {platform.machine()} are not redirected",
            advice=f"compile in this process, or use one of {', '.join(_SLOT_RELOCATIONS)}",
        )
    linked = _link_map(library)
    tags = _dynamic_tags(linked)
    strings, symbols = tags[_STRINGS], tags[_SYMBOLS]
    for table, size in ((_RELOCATIONS, _RELOCATION_BYTES), (_JUMP_SLOTS, _JUMP_SLOT_BYTES)):
        for position in range(tags.get(size, 0) // ctypes.sizeof(_Relocation)):
            relocation = _Relocation.from_address(tags[table] + position * ctypes.sizeof(_Relocation))
            if relocation.info & 0xFFFFFFFF not in kinds:
                continue
            symbol = _Symbol.from_address(symbols + (relocation.info >> 32) * ctypes.sizeof(_Symbol))
            name = ctypes.string_at(strings + symbol.name).decode()
            yield _Slot(name, linked.base + relocation.offset, relocation.addend)


def _link_map(library: ctypes.CDLL) -> _LinkMap:
    found = ctypes.c_void_p()
    ask = ctypes.CDLL(None).dlinfo
    ask.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]
    if ask(library._handle, _LINK_MAP_REQUEST, ctypes.byref(found)) or not found.value:
        raise EmulatorError(f"the dynamic linker does not know {library._name}", advice="load it with ctypes.CDLL")
    return _LinkMap.from_address(found.value)


def _dynamic_tags(linked: _LinkMap) -> dict[int, int]:
    tags: dict[int, int] = {}
    address = linked.dynamic
    while (entry := _Dynamic.from_address(address)).tag:
        value = int(entry.value)
        # The linker has relocated these in place on most systems, and left them as offsets on some.
        is_pointer = entry.tag in (_STRINGS, _SYMBOLS, _RELOCATIONS, _JUMP_SLOTS)
        tags[int(entry.tag)] = value + linked.base if is_pointer and value < linked.base else value
        address += ctypes.sizeof(_Dynamic)
    return tags


def _write(slot: int, value: int) -> None:
    page = slot & -mmap.PAGESIZE
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    if protect(page, mmap.PAGESIZE, _READ_WRITE):  # slots are read-only where the object was linked so
        raise EmulatorError(f"the slot at {slot:#x} cannot be made writable (errno {ctypes.get_errno()})")
    ctypes.c_uint64.from_address(slot).value = value
