# SPDX-License-Identifier: Apache-2.0
"""atom and red (PTX ISA, "Parallel Synchronization and Communication Instructions: atom, red"), lane by lane."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..builder import Builder, Handler, Registers, Step, check_modifiers
from ..clocks import Clock
from ..global_races import of_lanes
from ..lanes import LANES, Array
from ..memory import SHARED_WINDOW
from ..shared import word_range
from ..state import Warp
from ..statements import type_bytes
from ..syntax import Instruction
from .addressing import address, check_aligned, require_address, shared_at
from .formats import decode, round_to

_FLAGS = {
    *("global", "shared", "shared::cta", "shared::cluster", "relaxed", "acquire", "release", "acq_rel", "noftz"),
    *("cta", "cluster", "gpu", "sys", "async", "v2", "v4", "v8"),
}
_OPERATIONS = ("add", "min", "max", "and", "or", "xor", "inc", "dec", "exch", "cas")
_NUMPY: dict[str, Any] = {"f32": np.float32, "f64": np.float64, "s32": np.int32, "s64": np.int64}


def _combine(operation: str, type_name: str) -> Callable[[Array, Array], Array]:
    """New bits from old and operand bits, as arrays of the type's unsigned integers."""
    if type_name in ("f16", "f16x2", "bf16", "bf16x2"):
        name = type_name.removesuffix("x2")

        def halves(old: Array, new: Array) -> Array:
            left, right = decode(old.view(np.uint16), name), decode(new.view(np.uint16), name)
            total = {"add": np.add, "min": np.fmin, "max": np.fmax}[operation](left, right)
            return round_to(total, name).view(old.dtype)

        return halves
    kind = _NUMPY.get(type_name)
    table: dict[str, Callable[[Array, Array], Array]] = {
        "add": np.add,
        "min": np.minimum,
        "max": np.maximum,
        "and": np.bitwise_and,
        "or": np.bitwise_or,
        "xor": np.bitwise_xor,
        "exch": lambda old, new: new,
        "inc": lambda old, new: np.where(old >= new, old.dtype.type(0), old + old.dtype.type(1)),
        "dec": lambda old, new: np.where((old == 0) | (old > new), new, old - old.dtype.type(1)),
    }
    compute = table[operation]

    def apply(old: Array, new: Array) -> Array:
        if kind is None:
            return compute(old, new)
        return np.asarray(compute(old.view(kind), new.view(kind)), kind).view(old.dtype)

    return apply


def _bytes_at(warp: Warp, where: int, size: int, shared: bool) -> Array:
    """The bytes of one atomic access, checked."""
    check_aligned(where, size)
    if not shared and where >= SHARED_WINDOW:
        shared, where = True, where - SHARED_WINDOW
    if not shared:
        span = warp.grid.memory.span(where, size)
        if warp.grid.races is not None:
            warp.grid.races.check_atomic(warp, warp.cta.cluster.number, of_lanes(np.array([where], np.uint64), size))
        return span
    memory, offset = shared_at(warp, where, True)
    memory.check_bounds(offset, offset + size, size)
    memory.on_atomic(warp, word_range(offset, size))
    return memory.u8[offset : offset + size]


def _order(warp: Warp, where: int, shared: bool, acquires: bool, releases: bool) -> None:
    """Atomics on one location order the warps that use release and acquire on it."""
    if not shared and where < SHARED_WINDOW:
        warp.synchronize(where, True, True, acquires, releases)
        return
    if not (acquires or releases):
        return
    clocks: dict[int, Clock] = warp.cta.cluster.atomics
    clock = clocks.setdefault(where, Clock())
    if acquires:
        warp.acquire(clock)
    if releases:
        clock.join(warp.release())


def _atomic(builder: Builder, instruction: Instruction) -> Step:
    type_name = instruction.modifiers[-1]
    operation = next((m for m in instruction.modifiers if m in _OPERATIONS), "")
    check_modifiers(builder, instruction, {*_FLAGS, operation, type_name})
    if not operation or type_name == "b128":
        raise builder.unknown(instruction)
    returns = instruction.opcode == "atom"
    position = 1 if returns else 0
    shared = any(m.startswith("shared") for m in instruction.modifiers)
    locate = address(builder, require_address(builder, instruction, position), 32 if shared else 64)
    size = type_bytes(type_name)
    values = builder.sources(instruction.operands[position + 1], 8 * size)
    swap = builder.source(instruction.operands[position + 2], 8 * size) if operation == "cas" else -1
    writes = [builder.setter(target) for target in builder.targets(instruction.operands[0])] if returns else []
    combine = _combine(operation, type_name) if operation != "cas" else None
    acquires = instruction.has("acquire") or instruction.has("acq_rel")
    releases = instruction.has("release") or instruction.has("acq_rel")
    dtype = np.dtype(f"u{size}")

    def step(warp: Warp, registers: Registers) -> None:
        where = locate(registers)
        olds = np.zeros((len(values), LANES), dtype)
        for lane in range(LANES):
            if not warp.mask >> lane & 1:
                continue
            place = where if type(where) is int else int(where[lane])
            cells = _bytes_at(warp, place, size * len(values), shared).view(dtype)
            olds[:, lane] = cells
            new = np.array([_lane(registers[slot], lane) for slot in values], dtype)
            if combine is None:
                if cells[0] == new[0]:
                    cells[0] = _lane(registers[swap], lane)
            else:
                cells[:] = combine(cells.copy(), new)
            _order(warp, place, shared, acquires, releases)
        for write, old in zip(writes, olds, strict=False):
            write(warp, registers, old)
        warp.grid.progress += 1

    return step


def _lane(value: Any, lane: int) -> int:
    return value if type(value) is int else int(value[lane])


INSTRUCTIONS: dict[str, Handler] = {"atom": _atomic, "red": _atomic}
