# SPDX-License-Identifier: Apache-2.0
"""Data movement between registers and spaces (PTX ISA, "Data Movement": mov prmt shfl cvta mapa isspacep)."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..builder import Builder, Handler, Registers, Step, bits_of, check_modifiers
from ..lanes import DTYPES, LANE_INDEX, LANES, Array, Value
from ..memory import LOCAL_WINDOW, SHARED_WINDOW
from ..shared import CTA_SHIFT
from ..state import Warp
from ..syntax import Instruction, Pair, Symbol, Vector
from .comparison import lanes_true


def _mov(builder: Builder, instruction: Instruction) -> Step:
    type_name = instruction.modifiers[-1]
    check_modifiers(builder, instruction, {type_name})
    bits = bits_of(type_name)
    target, source = instruction.operands
    if isinstance(target, Vector):
        return _unpack(builder, instruction, target, bits)
    if isinstance(source, Vector):
        return _pack(builder, instruction, source, bits)
    if isinstance(source, Symbol) and source.offset_bytes:
        slot, offset = builder.symbol(source.name), source.offset_bytes
        return builder.unary(builder.target(target), slot, lambda a: a + offset)
    if isinstance(source, Symbol) and source.name in ("%clock", "%clock64", "%globaltimer", "%globaltimer_lo"):
        return _clock(builder, instruction)
    return builder.unary(builder.target(target), builder.source(source, bits), lambda a: a)


def _clock(builder: Builder, instruction: Instruction) -> Step:
    # There is no time here; the count of the warp's instructions grows, which is all that a program may rely on.
    write = builder.setter(builder.target(instruction.operands[0]))

    def step(warp: Warp, registers: Registers) -> None:
        warp.instructions += 1
        write(warp, registers, warp.instructions & 0xFFFFFFFF)

    return step


def _unpack(builder: Builder, instruction: Instruction, target: Vector, bits: int) -> Step:
    count = len(target.elements)
    width = bits // count
    writes = [builder.setter(builder.target(element, width)) for element in target.elements]
    slot = builder.source(instruction.operands[1], bits)
    if bits == 128:
        if count != 2:
            raise builder.unknown(instruction)

        def halves(warp: Warp, registers: Registers) -> None:
            for write, part in zip(writes, registers[slot], strict=True):
                write(warp, registers, part)

        return halves
    mask = (1 << width) - 1
    dtype = DTYPES[width]
    whole = DTYPES[bits]

    def step(warp: Warp, registers: Registers) -> None:
        value = registers[slot]
        if type(value) is int:
            for index, write in enumerate(writes):
                write(warp, registers, value >> index * width & mask)
        else:
            for index, write in enumerate(writes):
                write(warp, registers, (value >> whole(index * width)).astype(dtype) if index else value.astype(dtype))

    return step


def _pack(builder: Builder, instruction: Instruction, source: Vector, bits: int) -> Step:
    count = len(source.elements)
    width = bits // count
    slots = [builder.source(element, width) for element in source.elements]
    write = builder.setter(builder.target(instruction.operands[0]))
    if bits == 128:
        if count != 2:
            raise builder.unknown(instruction)
        return lambda warp, registers: write(warp, registers, (registers[slots[0]], registers[slots[1]]))
    mask = (1 << width) - 1
    dtype, whole = DTYPES[width], DTYPES[bits]

    def step(warp: Warp, registers: Registers) -> None:
        values = [registers[slot] for slot in slots]
        if all(type(value) is int for value in values):
            total = 0
            for index, value in enumerate(values):
                total |= (value & mask) << index * width
            write(warp, registers, total)
            return
        rows = np.empty((LANES, count), dtype)
        for index, value in enumerate(values):
            rows[:, index] = value
        write(warp, registers, rows.view(whole)[:, 0])

    return step


# -- bytes and lanes ---------------------------------------------------------------------------------------------


# The selectors that stand for modes 0 to 3 of each named permutation, one nibble a byte.
_PERMUTATIONS = {
    "f4e": (0x3210, 0x4321, 0x5432, 0x6543),
    "b4e": (0x5670, 0x6701, 0x7012, 0x0123),
    "rc8": (0x0000, 0x1111, 0x2222, 0x3333),
    "ecl": (0x3210, 0x3211, 0x3222, 0x3333),
    "ecr": (0x0000, 0x1110, 0x2210, 0x3210),
    "rc16": (0x1010, 0x3232, 0x1010, 0x3232),
}


def _prmt(builder: Builder, instruction: Instruction) -> Step:
    mode = instruction.modifiers[1] if len(instruction.modifiers) > 1 else ""
    check_modifiers(builder, instruction, {"b32", *_PERMUTATIONS})
    slots = [builder.source(operand) for operand in instruction.operands[1:]]
    selectors = np.array(_PERMUTATIONS.get(mode, (0, 0, 0, 0)), np.uint32)

    def compute(a: Value, b: Value, selector: Value) -> Value:
        uniform = all(type(value) is int for value in (a, b, selector))
        if mode:
            selector = selectors[np.asarray(selector, np.uint32) & 3]
        bytes_ = np.empty((1 if uniform else LANES, 2), np.uint32)
        bytes_[:, 0], bytes_[:, 1] = a, b
        source = bytes_.view(np.uint8)
        nibbles = np.asarray(selector, np.uint32).reshape(-1, 1) >> np.arange(0, 16, 4, dtype=np.uint32) & 15
        picks = np.broadcast_to(nibbles & 7, (source.shape[0], 4)).astype(np.int64)
        found = np.take_along_axis(source, picks, axis=1)
        sign = np.where(found & 0x80, np.uint8(0xFF), np.uint8(0))
        found = np.ascontiguousarray(np.where(nibbles & 8, sign, found))
        result = found.view(np.uint32)[:, 0]
        return int(result[0]) if uniform else result

    return builder.ternary(builder.target(instruction.operands[0]), slots[0], slots[1], slots[2], compute)


def _shfl(builder: Builder, instruction: Instruction) -> Step:
    sync, mode, type_name = instruction.modifiers
    if sync != "sync" or mode not in ("idx", "up", "down", "bfly") or type_name != "b32":
        raise builder.unknown(instruction)
    first, *rest = instruction.operands
    value_target = first.first if isinstance(first, Pair) else first
    write = builder.setter(builder.target(value_target))
    write_valid = builder.setter(builder.target(first.second)) if isinstance(first, Pair) else None
    a, b, c, members = (builder.source(operand) for operand in rest)

    def step(warp: Warp, registers: Registers) -> None:
        value, lane, clamp, mask = registers[a], registers[b], registers[c], registers[members]
        if type(mask) is int:
            warp.require(mask, "shfl.sync")
        if type(value) is int and write_valid is None:
            write(warp, registers, value)
            return
        if mode == "idx" and write_valid is None and type(lane) is int and clamp == 31:
            # One lane's value for all: uniform from here on.
            write(warp, registers, int(value[lane & 31]))
            return
        source, valid = _shuffle_source(mode, lane, clamp)
        spread = np.full(LANES, value, np.uint32) if type(value) is int else value
        write(warp, registers, spread[source])
        if write_valid is not None:
            write_valid(warp, registers, valid)

    return step


def _shuffle_source(mode: str, lane: Value, clamp: Value) -> tuple[Array, Array]:
    own = LANE_INDEX.astype(np.int64)
    offset = np.asarray(lane, np.int64) & 31
    limits = np.asarray(clamp, np.int64)
    segment, bound = limits >> 8 & 31, limits & 31
    low = own & segment
    high = low | (bound & ~segment)
    if mode == "up":
        source = own - offset
        valid = source >= high
    elif mode == "down":
        source = own + offset
        valid = source <= high
    elif mode == "bfly":
        source = own ^ offset
        valid = source <= high
    else:
        source = low | (offset & ~segment)
        valid = source <= high
    return np.where(valid, source, own), np.broadcast_to(valid, (LANES,))


# -- address spaces ----------------------------------------------------------------------------------------------


def _cvta(builder: Builder, instruction: Instruction) -> Step:
    space = instruction.modifiers[-2]
    to_space = instruction.has("to")
    bits = bits_of(instruction.modifiers[-1])
    if space not in ("global", "const", "param", "shared", "shared::cta", "shared::cluster", "local"):
        raise builder.unknown(instruction)
    target, source = instruction.operands
    slot = builder.source(source, bits)
    if space in ("global", "const", "param"):
        return builder.unary(builder.target(target), slot, lambda a: a)
    window = LOCAL_WINDOW if space == "local" else SHARED_WINDOW

    def convert(a: Value) -> Value:
        if type(a) is int:
            return a - window & 0xFFFFFFFFFFFFFFFF if to_space else a + window
        return a - np.uint64(window) if to_space else a + np.uint64(window)

    return builder.unary(builder.target(target), slot, convert)


def _mapa(builder: Builder, instruction: Instruction) -> Step:
    target, source, rank = instruction.operands
    bits = bits_of(instruction.modifiers[-1])
    generic = "shared::cluster" not in instruction.modifiers
    if generic and bits != 64:
        raise builder.unknown(instruction)
    dtype: Any = DTYPES[bits]

    def compute(a: Value, r: Value) -> Value:
        if type(a) is int and type(r) is int:
            return a & ~(0xFF << CTA_SHIFT) | r << CTA_SHIFT
        left = (
            a & dtype(~(0xFF << CTA_SHIFT) & ((1 << bits) - 1))
            if isinstance(a, np.ndarray)
            else dtype(a & ~(0xFF << CTA_SHIFT))
        )
        right = r.astype(dtype) if isinstance(r, np.ndarray) else dtype(r)
        return left | (right << dtype(CTA_SHIFT))

    return builder.binary(builder.target(target), builder.source(source, bits), builder.source(rank, 32), compute)


def _getctarank(builder: Builder, instruction: Instruction) -> Step:
    target, source = instruction.operands
    bits = bits_of(instruction.modifiers[-1])

    def compute(a: Value) -> Value:
        if type(a) is int:
            return a >> CTA_SHIFT & 0xFF
        return (a >> a.dtype.type(CTA_SHIFT)).astype(np.uint32) & np.uint32(0xFF)

    return builder.unary(builder.target(target), builder.source(source, bits), compute)


def _isspacep(builder: Builder, instruction: Instruction) -> Step:
    space = instruction.modifiers[-1]
    write = builder.setter(builder.target(instruction.operands[0]))
    slot = builder.source(instruction.operands[1], 64)
    if space not in ("global", "shared", "shared::cta", "shared::cluster"):
        raise builder.unknown(instruction)

    def step(warp: Warp, registers: Registers) -> None:
        value = registers[slot]
        shared = value >= SHARED_WINDOW
        if space == "global":
            found = ~lanes_true(shared) if not isinstance(shared, bool) else not shared
        elif space == "shared::cluster":
            found = shared
        else:
            own = (value & 0xFFFFFFFF) >> CTA_SHIFT == warp.cta.rank
            found = shared and own if isinstance(shared, bool) else shared & own
        write(warp, registers, found)

    return step


def _createpolicy(builder: Builder, instruction: Instruction) -> Step:
    # Cache policies do not change results.
    write = builder.setter(builder.target(instruction.operands[0]))
    return lambda warp, registers: write(warp, registers, 0)


def _nothing(builder: Builder, instruction: Instruction) -> Step:
    return lambda warp, registers: None


INSTRUCTIONS: dict[str, Handler] = {
    "mov": _mov,
    "prmt": _prmt,
    "shfl": _shfl,
    "cvta": _cvta,
    "mapa": _mapa,
    "getctarank": _getctarank,
    "isspacep": _isspacep,
    "createpolicy": _createpolicy,
    "discard": _nothing,
    "applypriority": _nothing,
    "nanosleep": _nothing,
    "pmevent": _nothing,
}
