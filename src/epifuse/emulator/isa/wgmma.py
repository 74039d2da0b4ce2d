# SPDX-License-Identifier: Apache-2.0
"""wgmma (PTX ISA, "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions").

Each of the four warps of a warpgroup computes its 16 rows of the 64. A product is carried out, and its registers are
written, at the latest when its group is waited for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..builder import Builder, Handler, Registers, Step, check_modifiers
from ..clocks import event
from ..lanes import LANES, Array
from ..operations import Operation
from ..reports import DescriptorError
from ..shared import SharedMemory
from ..state import Warp
from ..syntax import Immediate, Instruction, Operand, Vector
from . import descriptors
from .formats import decode
from .matrix import clamp_s32, gather_a, operand_values
from .synchronisation import uniform

_BYTES = {"f16": 2, "bf16": 2, "tf32": 4, "e4m3": 1, "e5m2": 1, "s8": 1, "u8": 1}
_K_BYTES = 32


@dataclass
class WgmmaGroups:
    """A warp's products: those not yet in a group, and how many groups were committed and waited for."""

    dimension: int
    open: list[tuple[Operation, SharedMemory, Array]] = field(default_factory=list)
    committed: int = 0
    finished: int = 0


@dataclass(frozen=True)
class _Form:
    n: int
    k: int
    d_type: str
    a_type: str
    b_type: str
    a_k_major: bool
    b_k_major: bool
    negate: bool
    saturate: bool


def _groups(warp: Warp) -> WgmmaGroups:
    found: WgmmaGroups | None = warp.groups.get("wgmma")
    if found is None:
        found = WgmmaGroups(warp.cta.cluster.dimensions.new(f"a wgmma group of {warp.describe()}"))
        warp.groups["wgmma"] = found
    return found


def _form(builder: Builder, instruction: Instruction, scales: list[int]) -> _Form:
    modifiers = instruction.modifiers
    shape = next((m for m in modifiers if m.startswith("m64n")), "m64n0k0")
    d_type, a_type, b_type = modifiers[-3:]
    check_modifiers(builder, instruction, {"mma_async", "sync", "aligned", shape, "satfinite", d_type, a_type, b_type})
    n, k = (int(part) for part in shape.removeprefix("m64n").split("k"))
    if a_type not in _BYTES or b_type not in _BYTES or d_type not in ("f16", "f32", "s32"):
        raise builder.unknown(instruction)
    if k * _BYTES[a_type] != _K_BYTES or n % 8 or not 8 <= n <= 256:
        raise builder.unknown(instruction, f"shape {shape}")
    a_scale, b_scale, a_transposed, b_transposed = (*scales, *(1, 1, 0, 0)[len(scales) :])
    negate = (a_scale == -1) != (b_scale == -1)
    return _Form(n, k, d_type, a_type, b_type, not a_transposed, not b_transposed, negate, instruction.has("satfinite"))


def _constants(operands: tuple[Operand, ...]) -> list[int]:
    return [operand.value for operand in operands if isinstance(operand, Immediate)]


def _mma_async(builder: Builder, instruction: Instruction) -> Step:
    d, a, b, scale_d, *rest = instruction.operands
    scales = _constants(tuple(rest))
    if len(scales) != len(rest):
        raise builder.unknown(instruction, "scales that are not constants")
    a_in_registers = isinstance(a, Vector)
    if a_in_registers and len(scales) == 3:
        scales.insert(2, 0)
    form = _form(builder, instruction, scales)
    d_slots = builder.sources(d)
    if len(d_slots) != form.n // (4 if form.d_type == "f16" else 2):
        raise builder.unknown(instruction, f"{len(d_slots)} accumulators")
    a_slots = builder.sources(a) if a_in_registers else [builder.source(a, 64)]
    b_slot, scale_slot = builder.source(b, 64), builder.source(scale_d, 1)

    def step(warp: Warp, registers: Registers) -> None:
        warp.require(0xFFFFFFFF, "wgmma.mma_async")
        operation = warp.start("wgmma.mma_async")
        operation.holds_shared = True
        left: Callable[[], Array]
        if a_in_registers:
            matrix = gather_a(_stack(registers, a_slots), form.a_type)
            left = _constant(matrix)
        else:
            left = _operand(warp, operation, uniform(registers[a_slots[0]], warp), form, is_a=True)
        right = _operand(warp, operation, uniform(registers[b_slot], warp), form, is_a=False)
        accumulate = (
            bool(uniform(registers[scale_slot], warp))
            if not isinstance(registers[scale_slot], bool)
            else registers[scale_slot]
        )

        def carry_out() -> None:
            product = left() @ right().T
            if form.negate:
                product = -product
            if accumulate:
                product = product + _read(_stack(registers, d_slots), form)
            for slot, value in zip(d_slots, _parts(product, form), strict=True):
                registers[slot] = value

        warp.grid.queue.add(("wgmma", warp), operation.on_run(carry_out))

    return step


def _constant(matrix: Array) -> Callable[[], Array]:
    return lambda: matrix


def _stack(registers: Registers, slots: list[int]) -> Array:
    out = np.empty((len(slots), LANES), np.uint32)
    for index, slot in enumerate(slots):
        out[index] = registers[slot]
    return out


def _operand(warp: Warp, operation: Operation, value: int, form: _Form, is_a: bool) -> Callable[[], Array]:
    type_name, k_major = (form.a_type, form.a_k_major) if is_a else (form.b_type, form.b_k_major)
    size = _BYTES[type_name]
    if not k_major and size != 2:
        raise DescriptorError(f"a transposed operand of type {type_name}")
    descriptor = descriptors.decode_wgmma(value)
    where = descriptors.rows_of(descriptor, 64 if is_a else form.n, form.k, size, k_major)
    if is_a:
        part = warp.index % 4
        where = where[16 * part : 16 * part + 16] if k_major else where[:, part * size : part * size + size]
    memory = warp.cta.shared
    descriptors.check_rows(memory, where)
    words = descriptors.words_of(where)
    memory.on_async_read(operation, words)
    _groups(warp).open.append((operation, memory, words))

    def values() -> Array:
        codes = np.ascontiguousarray(descriptors.gather(memory, where, size, k_major))
        return operand_values(codes, type_name) if type_name in ("s8", "u8") else decode(codes, type_name)

    return values


def _read(stack: Array, form: _Form) -> Array:
    blocks = form.n // 8
    if form.d_type == "f16":
        halves = stack.view(np.uint16).reshape(blocks, 2, 8, 8)
        codes = np.ascontiguousarray(halves.transpose(1, 2, 0, 3)).reshape(16, form.n)
        return codes.view(np.float16).astype(np.float32)
    wide = np.ascontiguousarray(stack.reshape(blocks, 2, 2, 8, 4).transpose(1, 3, 0, 4, 2)).reshape(16, form.n)
    return wide.view(np.int32).astype(np.float64) if form.d_type == "s32" else wide.view(np.float32)


def _parts(product: Array, form: _Form) -> Any:
    blocks = form.n // 8
    if form.d_type == "f16":
        codes = product.astype(np.float16).reshape(2, 8, blocks, 8).transpose(2, 0, 1, 3)
        return np.ascontiguousarray(codes).view(np.uint32).reshape(2 * blocks, LANES)
    if form.d_type == "s32":
        bits = (clamp_s32(product) if form.saturate else product).astype(np.int64).astype(np.uint32)
    else:
        bits = product.astype(np.float32, copy=False).view(np.uint32)
    return np.ascontiguousarray(bits.reshape(2, 8, blocks, 4, 2).transpose(2, 0, 4, 1, 3)).reshape(4 * blocks, LANES)


def _commit_group(builder: Builder, instruction: Instruction) -> Step:
    def step(warp: Warp, registers: Registers) -> None:
        groups = _groups(warp)
        groups.committed += 1
        for operation, memory, words in groups.open:
            memory.settle(words, operation.stamp, event(groups.dimension, groups.committed))
        groups.open.clear()
        # A marker, so that waiting can carry out exactly the groups before it.
        warp.grid.queue.add(("wgmma", warp), warp.start("wgmma.commit_group").on_run(lambda: _count(groups)))

    return step


def _count(groups: WgmmaGroups) -> None:
    groups.finished += 1


def _wait_group(builder: Builder, instruction: Instruction) -> Step:
    pending = getattr(instruction.operands[0], "value", 0)

    def step(warp: Warp, registers: Registers) -> None:
        groups = _groups(warp)
        while groups.finished < groups.committed - pending:
            warp.grid.queue.run_next(("wgmma", warp))
        warp.clock.learn(event(groups.dimension, max(groups.committed - pending, 0)))

    return step


def _fence(builder: Builder, instruction: Instruction) -> Step:
    return lambda warp, registers: None


def _wgmma(builder: Builder, instruction: Instruction) -> Step:
    forms: dict[str, Handler] = {
        "mma_async": _mma_async,
        "commit_group": _commit_group,
        "wait_group": _wait_group,
        "fence": _fence,
    }
    handler = forms.get(instruction.modifiers[0])
    if handler is None or instruction.has("sp"):
        raise builder.unknown(instruction)
    return handler(builder, instruction)


INSTRUCTIONS: dict[str, Handler] = {"wgmma": _wgmma}
