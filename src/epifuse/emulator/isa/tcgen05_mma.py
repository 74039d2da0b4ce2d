# SPDX-License-Identifier: Apache-2.0
"""tcgen05.mma (PTX ISA, "TensorCore 5th Generation: MMA"): kinds f16, tf32, f8f6f4 and i8, with one or two CTAs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..builder import Builder, Registers, Step, check_modifiers
from ..lanes import Array
from ..operations import Operation
from ..reports import DescriptorError, DivergenceError
from ..shared import SharedMemory
from ..state import Cta, Warp
from ..syntax import Address, Instruction, Vector
from ..tensor_memory import TensorMemory
from . import descriptors
from .formats import decode
from .matrix import operand_values
from .synchronisation import uniform
from .tensor_order import Access, order_of
from .tensor_pipe import pipe_of, tensor_memory_of

_KINDS: dict[str, tuple[int, dict[int, str]]] = {
    "kind::f16": (16, {0: "f16", 1: "bf16"}),
    "kind::tf32": (8, {2: "tf32"}),
    "kind::f8f6f4": (32, {0: "e4m3", 1: "e5m2"}),
    "kind::i8": (32, {0: "u8", 1: "s8"}),
}
_BYTES = {"f16": 2, "bf16": 2, "tf32": 4, "e4m3": 1, "e5m2": 1, "u8": 1, "s8": 1}
_RESULTS = {0: "f16", 1: "f32", 2: "s32"}


@dataclass(frozen=True)
class MmaShape:
    """A decoded instruction descriptor."""

    m: int
    n: int
    k: int
    a_type: str
    b_type: str
    d_type: str
    a_k_major: bool
    b_k_major: bool
    negate: bool
    saturate: bool


def decode_instruction(value: int, kind: str, ctas: int) -> MmaShape:
    """An instruction descriptor. Raises DescriptorError for what the kind does not allow."""
    k, types = _KINDS[kind]
    a_type, b_type = types.get(value >> 7 & 7), types.get(value >> 10 & 7)
    d_type = _RESULTS.get(value >> 4 & 3)
    m, n = (value >> 24 & 31) << 4, (value >> 17 & 63) << 3
    if a_type is None or b_type is None or d_type is None or value & 7:
        raise DescriptorError(f"instruction descriptor {value:#010x} has types or sparsity not executed for {kind}")
    integer = kind == "kind::i8"
    if integer != (d_type == "s32") or (d_type == "f16" and kind == "kind::tf32"):
        raise DescriptorError(f"instruction descriptor {value:#010x}: {kind} does not accumulate in {d_type}")
    steps = {(1, 64): 8, (1, 128): 16, (2, 128): 32, (2, 256): 32}.get((ctas, m))
    if steps is None or n % steps or not steps <= n <= 256:
        raise DescriptorError(f"instruction descriptor {value:#010x}: no MMA of {m} x {n} with {ctas} CTAs")
    negate = bool(value >> 13 & 1) != bool(value >> 14 & 1)
    return MmaShape(
        m, n, k, a_type, b_type, d_type, not value >> 15 & 1, not value >> 16 & 1, negate, bool(value >> 3 & 1)
    )


@dataclass(frozen=True)
class _Operand:
    """One CTA's part of A or B: rows in shared memory, or columns of tensor memory."""

    memory: SharedMemory | TensorMemory
    where: Any
    type: str
    k_major: bool

    def values(self) -> Array:
        """The part as float32, shape (rows, k)."""
        size = _BYTES[self.type]
        if isinstance(self.memory, TensorMemory):
            cells = np.ascontiguousarray(self.memory.cells[self.where])
            return operand_values(cells.view(f"u{size}"), self.type)
        codes = descriptors.gather(self.memory, self.where, size, self.k_major)
        if self.type in ("u8", "s8"):
            return operand_values(np.ascontiguousarray(codes), self.type)
        return decode(np.ascontiguousarray(codes), self.type)


def mma(builder: Builder, instruction: Instruction) -> Step:
    """tcgen05.mma without sparsity, block scaling and weight stationary form."""
    kind = next((m for m in instruction.modifiers if m in _KINDS), "")
    collectors = {m for m in instruction.modifiers if m.startswith("collector::a")}
    check_modifiers(builder, instruction, {"mma", "cta_group::1", "cta_group::2", kind, *collectors})
    if not kind:
        raise builder.unknown(instruction)
    ctas = 2 if instruction.has("cta_group::2") else 1
    d, a, b, idesc, *rest = instruction.operands
    d_slot = _bracketed(builder, instruction, d)
    a_in_tensor_memory = isinstance(a, Address)
    a_slot = _bracketed(builder, instruction, a) if isinstance(a, Address) else builder.source(a, 64)
    b_slot, idesc_slot = builder.source(b, 64), builder.source(idesc)
    mask_slots = builder.sources(rest.pop(0)) if rest and isinstance(rest[0], Vector) else []
    enable = builder.source(rest[0], 1)
    if len(rest) > 1:
        raise builder.unknown(instruction, "scaling the accumulator")

    def step(warp: Warp, registers: Registers) -> None:
        if warp.mask & (warp.mask - 1):
            raise DivergenceError(f"tcgen05.mma is issued by {warp.mask.bit_count()} lanes; each would issue one")
        shape = decode_instruction(uniform(registers[idesc_slot], warp), kind, ctas)
        masks = [uniform(registers[slot], warp) for slot in mask_slots]
        predicate = registers[enable]
        accumulate = predicate if type(predicate) is bool else bool(predicate[warp.lanes][0])
        a_value, b_value = uniform(registers[a_slot], warp), uniform(registers[b_slot], warp)
        _issue(
            warp, shape, ctas, uniform(registers[d_slot], warp), a_value, a_in_tensor_memory, b_value, accumulate, masks
        )

    return step


def _bracketed(builder: Builder, instruction: Instruction, operand: Any) -> int:
    if not isinstance(operand, Address) or operand.offset_bytes:
        raise builder.unknown(instruction, "tensor memory address")
    return builder.source(operand.base)


def _issue(
    warp: Warp,
    shape: MmaShape,
    ctas: int,
    d: int,
    a: int,
    a_in_tensor_memory: bool,
    b: int,
    accumulate: bool,
    masks: list[int],
) -> None:
    own = warp.cta
    pair = [own] if ctas == 1 else pair_of(warp)
    pipe = pipe_of(warp)
    operation = pipe.start(warp, "tcgen05.mma")
    access = order_of(warp).operation(operation, pipe.dimension)
    left = [_a_part(cta, shape, ctas, a, access if a_in_tensor_memory else operation) for cta in pair]
    right = [_shared_part(cta, b, shape.n // ctas, shape.k, shape.b_type, shape.b_k_major, operation) for cta in pair]
    targets = [_Accumulator(cta, d, shape, ctas) for cta in pair]
    for target in targets:
        target.check(access, pipe.stamps)
    lanes = _enabled_lanes(masks, len(pair))

    def carry_out() -> None:
        b_values = np.concatenate([part.values() for part in right]) if len(right) > 1 else right[0].values()
        for index, (part, target) in enumerate(zip(left, targets, strict=True)):
            target.write(part.values() @ b_values.T, accumulate, lanes[index])

    for memory_part in (*left, *right):
        if isinstance(memory_part.memory, SharedMemory):
            words = descriptors.words_of(memory_part.where)
            pipe.settle_later(operation, memory_part.memory.settle, words)
    for target in targets:
        pipe.settle_later(operation, target.memory.settle, target.halves, target.column, target.columns)
    warp.grid.queue.add(pipe.stream, operation.on_run(carry_out))


def pair_of(warp: Warp) -> list[Cta]:
    """The two CTAs of a warp's pair, the even rank first. Raises DescriptorError where there is no second."""
    ctas = warp.cta.cluster.ctas
    first = warp.cta.rank & ~1
    if first + 1 >= len(ctas):
        raise DescriptorError(f"cta_group::2 in a cluster of {len(ctas)} CTAs")
    return [ctas[first], ctas[first + 1]]


def _shared_part(
    cta: Cta, value: int, rows: int, k: int, type_name: str, k_major: bool, operation: Operation
) -> _Operand:
    descriptor = descriptors.decode_tcgen05(value)
    where = descriptors.rows_of(descriptor, rows, k, _BYTES[type_name], k_major)
    descriptors.check_rows(cta.shared, where)
    cta.shared.on_async_read(operation, descriptors.words_of(where))
    return _Operand(cta.shared, where, type_name, k_major)


def _a_part(cta: Cta, shape: MmaShape, ctas: int, value: int, agent: Operation | Access) -> _Operand:
    """A of one CTA; an Access reads it from tensor memory."""
    rows = shape.m // ctas
    if isinstance(agent, Operation):
        return _shared_part(cta, value, rows, shape.k, shape.a_type, shape.a_k_major, agent)
    memory = tensor_memory_of(cta)
    column, columns = value & 0xFFFF, shape.k * _BYTES[shape.a_type] // 4
    if rows != 128:
        raise DescriptorError(f"A in tensor memory with {rows} rows a CTA is not executed")
    memory.check(column, columns)
    memory.on_read(agent, slice(0, 8), column, columns)
    return _Operand(memory, (slice(0, 128), slice(column, column + columns)), shape.a_type, True)


def _enabled_lanes(masks: list[int], ctas: int) -> list[Array | None]:
    """For each CTA the lanes that are written; None for all."""
    if not any(masks):
        return [None] * ctas
    bits = np.array(masks, np.uint32).view(np.uint8)
    disabled = np.unpackbits(bits, bitorder="little").astype(np.bool_).reshape(ctas, -1)
    return list(~disabled)


class _Accumulator:
    """One CTA's part of D: which lanes and columns hold which rows and columns of the product.

    M 128 (256 with two CTAs): lane is row. M 64: 16 rows in each quarter of 32 lanes, at the address's lane. M 128 with
    two CTAs: 64 rows, the second half of N in lanes 64 to 127.
    """

    def __init__(self, cta: Cta, address: int, shape: MmaShape, ctas: int) -> None:
        self.memory = tensor_memory_of(cta)
        self.column, self.lane = address & 0xFFFF, address >> 16
        self.type = shape.d_type
        self.rows = shape.m // ctas
        self.split = ctas == 2 and shape.m == 128
        self.columns = shape.n // 2 if self.split else shape.n
        self.negate, self.saturate = shape.negate, shape.saturate
        self.halves = slice(0, 8)
        if self.lane not in ((0, 16) if self.rows == 64 and not self.split else (0,)):
            raise DescriptorError(f"accumulator of {self.rows} rows at tensor memory lane {self.lane}")
        if self.rows == 64 and not self.split:
            self.halves = slice(self.lane // 16, 8, 2)
        self.memory.check(self.column, self.columns)

    def check(self, access: Access, pipe: set[int]) -> None:
        """Check the write against everyone who is not ordered before it."""
        self.memory.on_write(access, self.halves, self.column, self.columns, pipe)

    def _cells(self) -> Array:
        span = self.memory.cells[:, self.column : self.column + self.columns]
        if self.rows == 64 and not self.split:
            return span.reshape(4, 32, -1)[:, self.lane : self.lane + 16]
        return span

    def write(self, product: Array, accumulate: bool, lanes: Array | None) -> None:
        """D = product (+ D), in the lanes enabled."""
        if self.negate:
            product = -product
        cells = self._cells()
        if self.split:
            product = np.concatenate((product[:, : self.columns], product[:, self.columns :]))
        elif self.rows == 64:
            product = product.reshape(4, 16, -1)
        if accumulate:
            product = product + _read_cells(cells, self.type)
        if self.type == "s32":
            if self.saturate:
                product = np.clip(product, -(1 << 31), (1 << 31) - 1)
            bits = product.astype(np.int64).astype(np.uint32)
        elif self.type == "f16":
            bits = product.astype(np.float16).view(np.uint16).astype(np.uint32)
        else:
            bits = product.astype(np.float32, copy=False).view(np.uint32)
        if lanes is None:
            cells[...] = bits
        elif self.rows == 64 and not self.split:
            raise DescriptorError("disabled lanes with an accumulator of 64 rows are not executed")
        else:
            cells[lanes] = bits[lanes]


def _read_cells(cells: Array, type_name: str) -> Array:
    if type_name == "f16":
        return cells.astype(np.uint16).view(np.float16).astype(np.float32)
    if type_name == "s32":
        return np.ascontiguousarray(cells).view(np.int32).astype(np.float64)
    return np.ascontiguousarray(cells).view(np.float32)
