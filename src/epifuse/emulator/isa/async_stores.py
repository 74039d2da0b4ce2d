# SPDX-License-Identifier: Apache-2.0
"""st.async to the cluster's shared memory (PTX ISA, "Data Movement and Conversion Instructions: st.async").

It uses the generic proxy. It checks its shared memory when it is issued; it is carried out later, before the mbarrier
that it signals counts its bytes, and in no order with others.
"""

from __future__ import annotations

import numpy as np

from ..builder import Builder, Registers, Step
from ..clocks import event
from ..lanes import DTYPES, LANES, Array, Value
from ..reports import ExecutionError, MemoryFaultError
from ..shared import CTA_SHIFT, OFFSET_MASK
from ..state import Warp
from ..statements import type_bytes
from ..syntax import Instruction
from .addressing import address, check_aligned, cta_at, require_address, shared_words
from .mbarrier import barrier_at

_TYPES = ("b32", "b64", "u32", "s32", "f32", "u64", "s64", "f64")
_VECTORS = {"": 1, "v2": 2, "v4": 4}
_MOST_BYTES = 16


def _shape(builder: Builder, instruction: Instruction) -> tuple[int, int]:
    """Bytes of an element and elements of a thread. Every form but the weak one to shared::cluster is unknown."""
    type_name = instruction.modifiers[-1]
    vector = next((m for m in instruction.modifiers if m in _VECTORS), "")
    weak = "weak" if instruction.has("weak") else ""
    parts = ("async", weak, "shared::cluster", "mbarrier::complete_tx::bytes", vector, type_name)
    if type_name not in _TYPES or instruction.modifiers != tuple(filter(None, parts)) or len(instruction.operands) != 3:
        raise builder.unknown(instruction)
    size, count = type_bytes(type_name), _VECTORS[vector]
    if size * count > _MOST_BYTES:
        raise builder.unknown(instruction, f"{size * count} bytes a thread")
    return size, count


def handle(builder: Builder, instruction: Instruction) -> Step:
    """st.async.weak: each lane writes its registers and counts their bytes at its mbarrier."""
    size, count = _shape(builder, instruction)
    locate = address(builder, require_address(builder, instruction, 0), 32)
    slots = builder.sources(instruction.operands[1], 8 * size)
    if len(slots) != count:
        raise builder.unknown(instruction, f"{len(slots)} sources")
    find_barrier = address(builder, require_address(builder, instruction, 2), 32)

    def step(warp: Warp, registers: Registers) -> None:
        if len(warp.cta.cluster.ctas) == 1:
            raise MemoryFaultError("st.async in a cluster of one CTA: the PTX ISA leaves it undefined")
        addresses, barriers = (_active(warp, find(registers), 4) for find in (locate, find_barrier))
        rows = np.stack([_active(warp, registers[slot], size) for slot in slots], axis=1)
        check_aligned(addresses, size * count)
        _check_same_cta(addresses, barriers)
        for barrier in np.unique(barriers):
            chosen = np.flatnonzero(barriers == barrier)
            try:
                _start(warp, addresses[chosen], rows[chosen], int(barrier))
            except ExecutionError as error:
                if error.position is not None:
                    error.position = int(chosen[error.position])
                raise

    return step


def _active(warp: Warp, value: Value, size: int) -> Array:
    """The values of the active lanes, `size` bytes of each."""
    return np.broadcast_to(np.asarray(value).astype(DTYPES[8 * size]), LANES)[warp.lanes]


def _check_same_cta(addresses: Array, barriers: Array) -> None:
    different = np.flatnonzero(addresses >> CTA_SHIFT != barriers >> CTA_SHIFT)
    if different.size:
        error = MemoryFaultError("st.async to one CTA signals a barrier of another")
        error.position = int(different[0])
        raise error


def _start(warp: Warp, addresses: Array, rows: Array, where: int) -> None:
    """Put stores of rows (lanes, elements) in flight, which the mbarrier at shared address `where` counts."""
    memory = cta_at(warp, where >> CTA_SHIFT).shared
    offsets = (addresses & OFFSET_MASK).astype(np.int64)
    size = rows.itemsize * rows.shape[1]
    memory.check_all(offsets, size)
    barrier_at(warp, where, True)
    operation = warp.start("st.async")
    words = shared_words(offsets, size)
    memory.on_write(operation, words)
    warp.bytes_moved += rows.nbytes

    def carry_out() -> None:
        memory.views[rows.itemsize][offsets[:, None] // rows.itemsize + np.arange(rows.shape[1])] = rows
        signalled = barrier_at(warp, where, True, operation)
        if not signalled.stores:
            name = f"st.async that completes on the mbarrier at offset {where & OFFSET_MASK:#x} of rank {memory.rank}"
            signalled.stores = warp.cta.cluster.dimensions.new(name)
        operation.clock.advance(signalled.stores, signalled.phase + 1)
        memory.settle(words, operation.stamp, event(signalled.stores, signalled.phase + 1))
        signalled.transact(rows.nbytes, operation.clock)
        warp.grid.progress += 1

    operation.holds_shared = True
    warp.grid.queue.add(operation.stamp, operation.on_run(carry_out))
