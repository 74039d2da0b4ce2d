# SPDX-License-Identifier: Apache-2.0
"""Warp-level matrices (PTX ISA, "Warp Level Matrix Multiply-Accumulate Instructions"): ldmatrix, stmatrix, mma.sync."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..builder import Builder, Handler, Registers, Step, check_modifiers
from ..lanes import LANES, Array, Value
from ..shared import CTA_SHIFT, OFFSET_MASK
from ..state import Warp
from ..syntax import Instruction
from .addressing import address, check_aligned, cta_at, require_address, shared_words
from .formats import decode

_SHAPE_COUNTS = {"x1": 1, "x2": 2, "x4": 4}


def _rows(warp: Warp, where: Value, count: int) -> tuple[Any, Array]:
    """The memory and offsets of the 8 rows of each matrix, given by lanes 0 to 8 * count - 1."""
    addresses = np.full(LANES, where, np.uint32) if type(where) is int else where
    used = addresses[: 8 * count]
    check_aligned(used, 16)
    memory = cta_at(warp, int(used[0]) >> CTA_SHIFT, False).shared
    offsets = used & OFFSET_MASK
    memory.check_all(offsets, 16)
    return memory, offsets


def _ldmatrix(builder: Builder, instruction: Instruction) -> Step:
    check_modifiers(
        builder, instruction, {"sync", "aligned", "m8n8", *_SHAPE_COUNTS, "trans", "shared", "shared::cta", "b16"}
    )
    count = next(_SHAPE_COUNTS[m] for m in instruction.modifiers if m in _SHAPE_COUNTS)
    writes = [builder.setter(target) for target in builder.targets(instruction.operands[0])]
    locate = address(builder, require_address(builder, instruction, 1), 32)
    transposed = instruction.has("trans")

    def step(warp: Warp, registers: Registers) -> None:
        warp.require(0xFFFFFFFF, "ldmatrix")
        memory, offsets = _rows(warp, locate(registers), count)
        words = shared_words(offsets, 16)
        memory.on_read(warp, words)
        rows = memory.views[4][words]
        for index, write in enumerate(writes):
            matrix = rows[8 * index : 8 * index + 8]
            if transposed:
                matrix = np.ascontiguousarray(matrix.view(np.uint16).T).view(np.uint32)
            write(warp, registers, matrix.reshape(LANES))

    return step


def _stmatrix(builder: Builder, instruction: Instruction) -> Step:
    check_modifiers(
        builder, instruction, {"sync", "aligned", "m8n8", *_SHAPE_COUNTS, "trans", "shared", "shared::cta", "b16"}
    )
    count = next(_SHAPE_COUNTS[m] for m in instruction.modifiers if m in _SHAPE_COUNTS)
    locate = address(builder, require_address(builder, instruction, 0), 32)
    slots = builder.sources(instruction.operands[1])
    transposed = instruction.has("trans")

    def step(warp: Warp, registers: Registers) -> None:
        warp.require(0xFFFFFFFF, "stmatrix")
        memory, offsets = _rows(warp, locate(registers), count)
        words = shared_words(offsets, 16)
        memory.on_write(warp, words)
        for index, slot in enumerate(slots):
            value = registers[slot]
            matrix = (np.full(LANES, value, np.uint32) if type(value) is int else value).reshape(8, 4)
            if transposed:
                matrix = np.ascontiguousarray(matrix.view(np.uint16).T).view(np.uint32)
            memory.views[4][words[8 * index : 8 * index + 8]] = matrix

    return step


# -- mma.sync ----------------------------------------------------------------------------------------------------

_ELEMENT_BITS = {"f16": 16, "bf16": 16, "tf32": 32, "e4m3": 8, "e5m2": 8, "s8": 8, "u8": 8}
_ELEMENT_TYPES: dict[int, Any] = {8: np.uint8, 16: np.uint16, 32: np.uint32}


def operand_values(codes: Array, type_name: str) -> Array:
    """Elements of a matrix operand as float32 (float64 for 8-bit integers, whose sums must be exact)."""
    if type_name == "s8":
        return codes.view(np.int8).astype(np.float64)
    if type_name == "u8":
        return codes.astype(np.float64)
    return decode(codes, type_name)


def _stack(values: list[Value]) -> Array:
    out = np.empty((len(values), LANES), np.uint32)
    for index, value in enumerate(values):
        out[index] = value
    return out


def gather_a(registers: Array, type_name: str) -> Array:
    """The 16 x k matrix A from its registers, shape (count, 32)."""
    bits = _ELEMENT_BITS[type_name]
    per = 32 // bits
    halves = len(registers) // 2
    codes = registers.view(_ELEMENT_TYPES[bits]).reshape(halves, 2, 8, 4 * per)
    return operand_values(np.ascontiguousarray(codes.transpose(1, 2, 0, 3)).reshape(16, halves * 4 * per), type_name)


def gather_b(registers: Array, type_name: str) -> Array:
    """The k x 8 matrix B from its registers, shape (count, 32)."""
    bits = _ELEMENT_BITS[type_name]
    per = 32 // bits
    codes = registers.view(_ELEMENT_TYPES[bits]).reshape(len(registers), 8, 4 * per)
    return operand_values(
        np.ascontiguousarray(codes.transpose(0, 2, 1)).reshape(len(registers) * 4 * per, 8), type_name
    )


def _gather_c(registers: Array, type_name: str) -> Array:
    if type_name == "f16":
        return registers.view(np.uint16).reshape(2, 8, 8).reshape(16, 8).view(np.float16).astype(np.float32)
    wide = registers.reshape(2, 2, 8, 4).transpose(0, 2, 3, 1).reshape(16, 8)
    return wide.view(np.int32).astype(np.float64) if type_name == "s32" else np.ascontiguousarray(wide).view(np.float32)


def _scatter_d(matrix: Array, type_name: str) -> list[Array]:
    if type_name == "f16":
        codes = matrix.astype(np.float16).view(np.uint32).reshape(2, LANES)
        return [codes[0], codes[1]]
    bits = matrix.astype(np.int64).astype(np.uint32) if type_name == "s32" else matrix.view(np.uint32)
    parts = bits.reshape(2, 8, 4, 2).transpose(0, 3, 1, 2).reshape(4, LANES)
    return [np.ascontiguousarray(part) for part in parts]


def clamp_s32(matrix: Array) -> Array:
    """Integer sums with `.satfinite`."""
    return np.clip(matrix, -(1 << 31), (1 << 31) - 1)


_K = {16: (8, 16), 8: (16, 32), 32: (4, 8)}


def _mma(builder: Builder, instruction: Instruction) -> Step:
    modifiers = instruction.modifiers
    shape = next((m for m in modifiers if m.startswith("m16n8k")), "")
    d_type, a_type, b_type, c_type = modifiers[-4:]
    check_modifiers(builder, instruction, {"sync", "aligned", shape, "row", "col", "satfinite", *modifiers[-4:]})
    if not shape or a_type not in _ELEMENT_BITS or b_type not in _ELEMENT_BITS or d_type not in ("f16", "f32", "s32"):
        raise builder.unknown(instruction)
    k = int(shape.removeprefix("m16n8k"))
    bits = _ELEMENT_BITS[a_type]
    if k not in _K[bits] or _ELEMENT_BITS[b_type] != bits:
        raise builder.unknown(instruction)
    writes = [builder.setter(target) for target in builder.targets(instruction.operands[0])]
    a, b, c = (builder.sources(operand) for operand in instruction.operands[1:4])
    saturate = instruction.has("satfinite")
    if len(a) != 16 * k * bits // 1024 or len(b) != 8 * k * bits // 1024:
        raise builder.unknown(instruction, "operand count")

    def step(warp: Warp, registers: Registers) -> None:
        warp.require(0xFFFFFFFF, "mma.sync")
        left = gather_a(_stack([registers[slot] for slot in a]), a_type)
        right = gather_b(_stack([registers[slot] for slot in b]), b_type)
        total = left @ right + _gather_c(_stack([registers[slot] for slot in c]), c_type)
        if saturate:
            total = clamp_s32(total)
        for write, part in zip(writes, _scatter_d(total, d_type), strict=True):
            write(warp, registers, part)

    return step


INSTRUCTIONS: dict[str, Handler] = {"ldmatrix": _ldmatrix, "stmatrix": _stmatrix, "mma": _mma}
