# SPDX-License-Identifier: Apache-2.0
"""Cluster launch control (PTX ISA, "clusterlaunchcontrol"): taking over clusters that are not yet launched.

The 128-bit answer is opaque; here its low half has bit 0 set for a cancelled cluster, then the CTA index in x, y and z.
"""

from __future__ import annotations

import numpy as np

from ..builder import Builder, Handler, Registers, Step, check_modifiers
from ..lanes import Value
from ..shared import OFFSET_MASK, SharedMemory
from ..state import Warp
from ..syntax import Instruction, Vector
from .addressing import address, check_aligned, require_address
from .bulk import start_load
from .synchronisation import uniform


def _try_cancel(builder: Builder, instruction: Instruction) -> Step:
    allowed = {"try_cancel", "async", "shared::cta", "mbarrier::complete_tx::bytes", "multicast::cluster::all", "b128"}
    check_modifiers(builder, instruction, allowed)
    locate = address(builder, require_address(builder, instruction, 0), 32)
    find_barrier = address(builder, require_address(builder, instruction, 1), 32)
    everyone = instruction.has("multicast::cluster::all")

    def step(warp: Warp, registers: Registers) -> None:
        target, barrier = uniform(locate(registers), warp), uniform(find_barrier(registers), warp)
        check_aligned(target, 16)
        grid = warp.grid
        answer = np.zeros(4, np.uint32)
        if grid.waiting:
            cluster = grid.waiting.popleft()
            index = [part * size for part, size in zip(cluster, grid.cluster_size, strict=True)]
            answer[:] = (1, *index)

        def write(memory: SharedMemory, offset: int) -> None:
            memory.views[4][offset // 4 : offset // 4 + 4] = answer

        ranks = range(len(warp.cta.cluster.ctas)) if everyone else (warp.cta.rank,)
        for rank in ranks:
            place, signal = (rank << 24 | each & OFFSET_MASK for each in (target, barrier))
            start_load(warp, "clusterlaunchcontrol.try_cancel", place, signal, 16, write)

    return step


def _query(builder: Builder, instruction: Instruction) -> Step:
    wanted = next((m for m in instruction.modifiers if m.startswith(("is_canceled", "get_first_ctaid"))), "")
    target, source = instruction.operands
    slot = builder.source(source, 128)

    def parts(value: Value) -> list[Value]:
        low, high = value
        return [_half(low, 0), _half(low, 32), _half(high, 0), _half(high, 32)]

    if wanted == "is_canceled":
        return builder.unary(builder.target(target), slot, lambda value: _truth(parts(value)[0]))
    if isinstance(target, Vector):
        writes = [builder.setter(builder.target(element)) for element in target.elements[:3]]

        def step(warp: Warp, registers: Registers) -> None:
            for write, part in zip(writes, parts(registers[slot])[1:], strict=False):
                write(warp, registers, part)

        return step
    axis = {"get_first_ctaid::x": 1, "get_first_ctaid::y": 2, "get_first_ctaid::z": 3}.get(wanted)
    if axis is None:
        raise builder.unknown(instruction)
    return builder.unary(builder.target(target), slot, lambda value: parts(value)[axis])


def _half(value: Value, shift: int) -> Value:
    if type(value) is int:
        return value >> shift & 0xFFFFFFFF
    return (value >> np.uint64(shift)).astype(np.uint32)


def _truth(value: Value) -> Value:
    return bool(value & 1) if type(value) is int else (value & np.uint32(1)).astype(np.bool_)


def _launch_control(builder: Builder, instruction: Instruction) -> Step:
    if instruction.has("try_cancel"):
        return _try_cancel(builder, instruction)
    if instruction.has("query_cancel"):
        return _query(builder, instruction)
    raise builder.unknown(instruction)


INSTRUCTIONS: dict[str, Handler] = {"clusterlaunchcontrol": _launch_control}
