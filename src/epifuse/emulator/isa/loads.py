# SPDX-License-Identifier: Apache-2.0
"""ld and st in every space and vector form (PTX ISA, "Data Movement and Conversion Instructions: ld, st")."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..builder import Builder, Handler, Registers, Step, check_modifiers
from ..global_races import of_lanes, of_view
from ..lanes import DTYPES, LANES, SIGNED, Array, Value
from ..memory import LOCAL_WINDOW, SHARED_WINDOW
from ..reports import MemoryFaultError
from ..shared import CTA_SHIFT, OFFSET_MASK, word_range
from ..state import Warp
from ..statements import type_bytes
from ..syntax import Instruction, Symbol
from . import async_stores
from .addressing import address, check_aligned, cta_at, require_address, shared_at, shared_words

_SPACES = {"global", "shared", "param", "const", "local", "shared::cta", "shared::cluster", "param::entry"}
_HINTS = {
    *("weak", "relaxed", "acquire", "release", "volatile", "cta", "cluster", "gpu", "sys", "mmio", "nc"),
    *("ca", "cg", "cs", "cv", "lu", "wb", "wt", "unified"),
}
Load = Callable[[Warp, Value, int, int], Array]


def _space(instruction: Instruction) -> str:
    return next((m for m in instruction.modifiers if m in _SPACES), "generic")


def _shape(builder: Builder, instruction: Instruction) -> tuple[int, int, str]:
    type_name = instruction.modifiers[-1]
    count = next((int(m[1:]) for m in instruction.modifiers if m in ("v2", "v4", "v8")), 1)
    hints = {m for m in instruction.modifiers if m.startswith(("L1::", "L2::"))}
    check_modifiers(builder, instruction, {type_name, "v2", "v4", "v8", *_SPACES, *_HINTS, *hints})
    return type_bytes(type_name), count, type_name


def active(warp: Warp, value: Value, dtype: Any) -> Array:
    """The values of the active lanes only; `value` may be uniform."""
    if isinstance(value, np.ndarray):
        return value[warp.lanes] if warp.mask != 0xFFFFFFFF else value
    return np.full(warp.mask.bit_count(), value, dtype)


def inactive_filled(warp: Warp, values: Array) -> Array:
    """Values of the active lanes as an array of 32, zero elsewhere."""
    if warp.mask == 0xFFFFFFFF:
        return values
    out = np.zeros(LANES, values.dtype)
    out[warp.lanes] = values
    return out


# -- ld ----------------------------------------------------------------------------------------------------------


def _ld(builder: Builder, instruction: Instruction) -> Step:
    size, count, type_name = _shape(builder, instruction)
    space = _space(instruction)
    targets = builder.targets(instruction.operands[0])
    if len(targets) != count:
        raise builder.unknown(instruction, f"{len(targets)} destinations")
    place = require_address(builder, instruction, 1)
    if space.startswith("param") and isinstance(place.base, Symbol):
        return _ld_param(builder, instruction, size, count, type_name)
    writes = [builder.setter(target) for target in targets]
    widths = [np.dtype(target.dtype).itemsize if target.dtype is not object else 16 for target in targets]
    load = _LOADS.get(space) or (_load_strong if _is_strong(instruction) else _load_global)
    acquires = instruction.has("acquire")
    bits = 32 if space.startswith("shared") else 64
    locate = address(builder, place, bits)
    is_signed = type_name[0] == "s"

    if size == 16:
        raise builder.unknown(instruction, "128-bit elements")

    def step(warp: Warp, registers: Registers) -> None:
        where = locate(registers)
        if type(where) is int and (space == "local" or LOCAL_WINDOW <= where < SHARED_WINDOW):
            where = np.full(LANES, where, np.uint64)  # the same address is another place for each thread
        check_aligned(where if type(where) is int else active(warp, where, np.uint64), size * count)
        # One contiguous row for each register: later steps view registers as narrower elements.
        columns = np.ascontiguousarray(load(warp, where, size, count).T)
        if load is _load_strong:
            for place in {where} if type(where) is int else set(active(warp, where, np.uint64).tolist()):
                warp.synchronize(place, True, False, acquires)
        for index, write in enumerate(writes):
            if type(where) is int:
                write(warp, registers, _widen_int(int(columns[index, 0]), size, widths[index], is_signed))
            else:
                column = inactive_filled(warp, columns[index])
                write(warp, registers, _widen(column, size, widths[index], is_signed))

    return step


def _is_strong(instruction: Instruction) -> bool:
    return any(m in ("volatile", "relaxed", "acquire", "release", "mmio") for m in instruction.modifiers)


def _widen_int(value: int, size: int, width: int, is_signed: bool) -> int:
    if is_signed and value >> (8 * size - 1):
        value -= 1 << 8 * size
    return value & ((1 << 8 * width) - 1)


def _widen(values: Array, size: int, width: int, is_signed: bool) -> Array:
    if size == width:
        return values
    if is_signed:
        found: Array = values.view(SIGNED[8 * size]).astype(SIGNED[8 * width]).view(DTYPES[8 * width])
        return found
    return values.astype(DTYPES[8 * width])


def _ld_param(builder: Builder, instruction: Instruction, size: int, count: int, type_name: str) -> Step:
    place = require_address(builder, instruction, 1)
    assert isinstance(place.base, Symbol)
    start = builder.function.param_offsets().get(place.base.name)
    if start is None:
        raise builder.unknown(instruction, f"parameter {place.base.name}")
    start += place.offset_bytes
    targets = builder.targets(instruction.operands[0])
    writes = [builder.setter(target) for target in targets]
    widths = [np.dtype(target.dtype).itemsize for target in targets]
    is_signed = type_name[0] == "s"

    def step(warp: Warp, registers: Registers) -> None:
        data = warp.grid.parameter_bytes
        for index, write in enumerate(writes):
            at = start + index * size
            value = int.from_bytes(data[at : at + size], "little")
            write(warp, registers, _widen_int(value, size, widths[index], is_signed))

    return step


def _load_shared(warp: Warp, where: Value, size: int, count: int, cluster: bool = False) -> Array:
    total = size * count
    if type(where) is int:
        memory, offset = shared_at(warp, where, cluster)
        memory.check_bounds(offset, offset + total, total)
        if total < 4:
            memory.on_narrow_read(warp, np.array([offset]), total)
        else:
            memory.on_read(warp, word_range(offset, total))
        return memory.views[size][offset // size : offset // size + count][None, :]
    addresses = active(warp, where, np.uint32)
    ranks = addresses >> CTA_SHIFT
    rank = int(ranks[0])
    if (ranks != rank).any():
        return _load_shared_ranks(warp, addresses, ranks, size, count)
    memory = cta_at(warp, rank, cluster).shared
    offsets = addresses & OFFSET_MASK
    memory.check_all(offsets, total)
    if total < 4:
        memory.on_narrow_read(warp, offsets.astype(np.int64), total)
    else:
        memory.on_read(warp, shared_words(offsets, total))
    first = (offsets // size).astype(np.int64)
    found: Array = memory.views[size][first[:, None] + np.arange(count)]
    return found


def _load_shared_ranks(warp: Warp, addresses: Array, ranks: Array, size: int, count: int) -> Array:
    out = np.zeros((addresses.size, count), f"u{size}")
    whole = warp.mask
    for rank in np.unique(ranks):
        chosen = ranks == rank
        full = np.zeros(LANES, np.uint32)
        full[np.flatnonzero(warp.lanes)[chosen]] = addresses[chosen]
        mask = sum(1 << int(lane) for lane in np.flatnonzero(warp.lanes)[chosen])
        warp.narrow(mask)
        try:
            out[chosen] = _load_shared(warp, full, size, count, cluster=True)
        finally:
            warp.narrow(whole)
    return out


def _all_local(addresses: Array) -> bool:
    return int(addresses.min()) >= LOCAL_WINDOW and int(addresses.max()) < SHARED_WINDOW


def _local_indices(warp: Warp, addresses: Array, size: int, count: int) -> tuple[Array, Array, Array]:
    """Local memory as elements, and the lanes and elements that the active lanes' addresses name."""
    offsets = (addresses & np.uint64(0xFFFFFFFF)).astype(np.int64)
    if int(offsets.max()) + size * count > warp.grid.local_bytes:
        raise MemoryFaultError(f"local access at offset {int(offsets.max()):#x} of {warp.grid.local_bytes} bytes")
    lanes = np.flatnonzero(warp.lanes)[:, None]
    return warp.local.view(f"u{size}"), lanes, offsets[:, None] // size + np.arange(count)


def _load_local(warp: Warp, where: Value, size: int, count: int) -> Array:
    cells, lanes, elements = _local_indices(warp, active(warp, where, np.uint64), size, count)
    found: Array = cells[lanes, elements]
    return found


def _store_local(warp: Warp, addresses: Array, rows: Array) -> None:
    cells, lanes, elements = _local_indices(warp, addresses, rows.itemsize, rows.shape[1])
    cells[lanes, elements] = rows


def _load_strong(warp: Warp, where: Value, size: int, count: int) -> Array:
    return _load_global(warp, where, size, count, strong=True)


def _load_global(warp: Warp, where: Value, size: int, count: int, strong: bool = False) -> Array:
    memory = warp.grid.memory
    if type(where) is int:
        if where >= SHARED_WINDOW:
            return _load_shared(warp, where - SHARED_WINDOW, size, count, cluster=True)
        span = memory.span(where, size * count)
        if not strong:
            warp.touch(of_view(span), False)
        return span.view(f"u{size}")[None, :]
    addresses = active(warp, where, np.uint64)
    if _all_local(addresses):
        return _load_local(warp, where, size, count)
    if int(addresses.max()) >= SHARED_WINDOW:
        if int(addresses.min()) < SHARED_WINDOW:
            raise NotImplementedError("one load from global and shared memory through generic addresses")
        return _load_shared(warp, (where - np.uint64(SHARED_WINDOW)).astype(np.uint32), size, count, cluster=True)
    found = memory.gather(addresses, size, count)
    if not strong:
        warp.touch(of_lanes(addresses, size * count), False)
    return found


_LOADS: dict[str, Load] = {
    "shared": _load_shared,
    "shared::cta": _load_shared,
    "local": _load_local,
    "shared::cluster": lambda warp, where, size, count: _load_shared(warp, where, size, count, cluster=True),
}

# -- st ----------------------------------------------------------------------------------------------------------


def _st(builder: Builder, instruction: Instruction) -> Step:
    if instruction.has("async"):
        return async_stores.handle(builder, instruction)
    size, count, _ = _shape(builder, instruction)
    space = _space(instruction)
    if space not in ("global", "generic", "local", "shared", "shared::cta", "shared::cluster") or size == 16:
        raise builder.unknown(instruction)
    bits = 32 if space.startswith("shared") else 64
    locate = address(builder, require_address(builder, instruction, 0), bits)
    slots = builder.sources(instruction.operands[1], 8 * size)
    if len(slots) != count:
        raise builder.unknown(instruction, f"{len(slots)} sources")
    dtype = DTYPES[8 * size]
    cluster = space == "shared::cluster"
    strong, releases = _is_strong(instruction), instruction.has("release")

    def step(warp: Warp, registers: Registers) -> None:
        addresses = active(warp, locate(registers), DTYPES[bits])
        check_aligned(addresses, size * count)
        rows = np.empty((addresses.size, count), dtype)
        for index, slot in enumerate(slots):
            value = registers[slot]
            if type(value) is int:
                rows[:, index] = value & ((1 << 8 * size) - 1)
            else:
                rows[:, index] = active(warp, value, dtype)
        if space == "local":
            _store_local(warp, addresses, rows)
        elif bits == 32:
            store_shared(warp, addresses, rows, cluster)
        else:
            _store_generic(warp, addresses, rows, strong)
            if strong:
                for place in addresses.tolist():
                    warp.synchronize(place, False, True, releases=releases)
        # Others may spin on such a store.
        warp.grid.progress += strong

    return step


def store_shared(warp: Warp, addresses: Array, rows: Array, cluster: bool) -> None:
    """Store rows (lanes, count) at shared addresses."""
    total = rows.itemsize * rows.shape[1]
    ranks = addresses >> CTA_SHIFT
    for rank in {int(ranks[0])} if (ranks == ranks[0]).all() else {int(r) for r in ranks}:
        chosen = slice(None) if (ranks == rank).all() else ranks == rank
        memory = cta_at(warp, rank, cluster).shared
        offsets = addresses[chosen] & OFFSET_MASK
        memory.check_all(offsets, total)
        if total < 4:
            memory.on_narrow_write(warp, offsets.astype(np.int64), total)
        else:
            memory.on_write(warp, shared_words(offsets, total))
        first = (offsets // rows.itemsize).astype(np.int64)
        memory.views[rows.itemsize][first[:, None] + np.arange(rows.shape[1])] = rows[chosen]


def _store_global(warp: Warp, addresses: Array, rows: Array, strong: bool) -> None:
    warp.grid.memory.scatter(addresses, rows)
    if not strong:
        warp.touch(of_lanes(addresses, rows.itemsize * rows.shape[1]), True)


def _store_generic(warp: Warp, addresses: Array, rows: Array, strong: bool) -> None:
    if _all_local(addresses):
        _store_local(warp, addresses, rows)
        return
    if int(addresses.max()) < SHARED_WINDOW:
        _store_global(warp, addresses, rows, strong)
        return
    shared = addresses >= SHARED_WINDOW
    store_shared(warp, (addresses[shared] - np.uint64(SHARED_WINDOW)).astype(np.uint32), rows[shared], True)
    if not shared.all():
        _store_global(warp, addresses[~shared], rows[~shared], strong)


def _prefetch(builder: Builder, instruction: Instruction) -> Step:
    address(builder, require_address(builder, instruction, 0))
    return lambda warp, registers: None


INSTRUCTIONS: dict[str, Handler] = {"ld": _ld, "ldu": _ld, "st": _st, "prefetch": _prefetch, "prefetchu": _prefetch}
