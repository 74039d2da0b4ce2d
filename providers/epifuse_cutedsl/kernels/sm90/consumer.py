# SPDX-License-Identifier: Apache-2.0
"""The consumers: warpgroups that multiply what the ring brings and run the epilogues of their own rows."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import cute

from epifuse_cutedsl.configs.sm90 import BLOCK_M, WARPGROUP
from epifuse_cutedsl.configs.sm90_products import Part, ProductKind
from epifuse_cutedsl.kernels.ptx import alu, mbarrier, wgmma
from epifuse_cutedsl.kernels.ptx.asm import emit
from epifuse_cutedsl.kernels.sm80.stage import Placed
from epifuse_cutedsl.kernels.sm90.ring import Ring
from epifuse_cutedsl.tile.operand import ATOM_BYTES, OperandTile

_BOTH = 2 * WARPGROUP
"""Threads of the two that take turns."""
_FIRST_TURN_BARRIER = 3
"""Number of the first consumer's named barrier; those before are of their epilogues."""


@dataclass(frozen=True)
class Turns:
    """Ping-pong: one warpgroup's main loop after the other's, in the order of the tiles.

    A wait for a parity tells a phase from the next alone, so a warpgroup must not wait for a stage before the other one
    has seen the stage's phase before. It also lets a tile's products run undivided.
    """

    warpgroup: Any

    def give(self) -> None:
        """It is the other's turn."""
        emit(f"bar.arrive {{$r0}}, {_BOTH};", (), [_FIRST_TURN_BARRIER + (self.warpgroup ^ 1)])

    def take(self, found: Sequence[Any] = ()) -> None:
        """Wait for one's own turn. ``found`` (Int32 below 2^31) are computed before: they are in the barrier's number,
        to which they add nothing, or the assembler puts their arithmetic behind it."""
        number = _FIRST_TURN_BARRIER + self.warpgroup
        if found:
            number = number + (functools.reduce(operator.or_, found) >> 31)
        emit(f"bar.sync {{$r0}}, {_BOTH};", (), [number])


@dataclass(frozen=True)
class Product:
    """What one warpgroup multiplies: ``blocks`` times 64 rows from a block of A's tile on, ``n`` columns of B's.

    With promotion, ``part`` is what is summed up at a time, ``interval`` the instructions of such a sum.
    """

    a: OperandTile
    b: OperandTile
    kind: ProductKind
    blocks: int
    n: int
    part: Part | None = None
    interval: int = 0
    empty: bool = False
    """Whether K is 0."""

    @property
    def each(self) -> int:
        """Accumulators of a thread in one block of 64 rows."""
        return self.n // 2

    @property
    def registers(self) -> int:
        """Registers that the instructions' accumulators take, without promotion."""
        return self.blocks * wgmma.accumulator_registers(self.kind, self.n)

    @property
    def light(self) -> bool:
        """Whether the kernel may look to the assembler as if its threads did with the registers they start with.

        It then ignores the redistribution ("setmaxnreg ignored; unable to determine register count at entry"), and
        spills, unless it is told the number of CTAs of an SM; told so in other kernels, it spills a little in them.
        """
        return self.kind.packed or (self.part is not None and self.part.buffers > 1)

    @property
    def steps(self) -> int:
        """Instructions of a block in one K tile."""
        return self.a.steps

    @property
    def together(self) -> int:
        """K tiles from one promotion to the next."""
        return max(1, self.interval // self.steps)

    def parts(self, k_tiles: int) -> tuple[tuple[range, int, int], ...]:
        """Steps, block and first column of what is summed up at a time in so many K tiles, in the order of
        multiplication."""
        assert self.part is not None
        steps, columns = range(self.steps * k_tiles), range(0, self.n, self.part.n)
        sums = [steps[first : first + self.interval] for first in steps[:: self.interval]]
        return tuple((each, block, n) for each in sums for block in range(self.blocks) for n in columns)

    def multiply(self, accumulators: list[Any] | None, a_address: Any, b_address: Any) -> list[Any]:
        """Issue one K tile's products as a group; None: there is nothing to add to."""
        found = wgmma.undefined(self.registers) if accumulators is None else list(accumulators)
        each = self.registers // self.blocks
        wgmma.fence()
        for step in range(self.steps):
            for block in range(self.blocks):
                mine = slice(block * each, (block + 1) * each)
                add = step > 0 or accumulators is not None
                found[mine] = self._issue(found[mine], a_address, b_address, step, (block, 0), add)
        wgmma.commit_group()
        return found

    def promoted(self, sums: list[Any], k_tiles: int, come: Callable[[int], Any], read: Callable[[int], Any]) -> Any:
        """``sums`` (float32 bits) and the products of some K tiles, part by part.

        ``come(i)`` waits for K tile i and says where its operands lie; ``read(i)`` is called when it has been read.
        With two buffers, a part is added while the next one is multiplied.
        """
        assert self.part is not None
        found, parts, waiting, operands = list(sums), self.parts(k_tiles), [], []
        ahead = self.part.buffers - 1
        last, groups = len(parts) - 1, -(-len(parts[0][0]) // self.steps)
        for index in range(len(parts) + ahead):
            if index <= last:
                early = read if index == last and not ahead else None
                waiting.append(self._part(operands, parts[index], come, early))
            if index < ahead:
                continue
            values = wgmma.wait_group((len(waiting) - 1) * groups, waiting.pop(0))
            if index == last + ahead:
                for tile in range(0 if ahead else k_tiles - 1, k_tiles):
                    read(tile)
            _, block, first = parts[index - ahead]
            for place, value in enumerate(values, block * self.each + first // 2):
                found[place] = alu.add_f32(found[place], value)
        return found

    def _part(
        self,
        operands: list[Any],
        part: tuple[range, int, int],
        come: Callable[[int], Any],
        read: Callable[[int], Any] | None,
    ) -> list[Any]:
        """Issue the products of one of ``parts``, those of each K tile as a group.

        ``operands`` are those of the K tiles that have come. ``read``: nothing else is under way, and K tiles but the
        part's last one are given back as soon as they have been read.
        """
        assert self.part is not None
        steps, block, first = part
        found = wgmma.undefined(self.part.n // 2)
        for tile, within in itertools.groupby(steps, lambda step: step // self.steps):
            if tile == len(operands):
                operands.append(come(tile))
            wgmma.fence()
            for step in within:
                found = self._issue(found, *operands[tile], step % self.steps, (block, first), step > steps[0])
            wgmma.commit_group()
            if read is not None and tile > steps[0] // self.steps:
                found = wgmma.wait_group(1, found)
                read(tile - 1)
        return found

    def _issue(
        self, accumulators: list[Any], a_address: Any, b_address: Any, step: int, place: tuple[int, int], add: bool
    ) -> list[Any]:
        block, first = place
        a = wgmma.at(wgmma.descriptor(self.a.leading_bytes, ATOM_BYTES), a_address)
        b = wgmma.at(wgmma.descriptor(self.b.leading_bytes, ATOM_BYTES), b_address)
        return wgmma.mma_async(
            self.kind,
            self.part.n if self.part else self.n,
            accumulators,
            wgmma.moved(a, self.a.position_bytes(block * BLOCK_M) + self.a.step_bytes(step)),
            wgmma.moved(b, self.b.position_bytes(first) + self.b.step_bytes(step)),
            add=add,
            a_k_major=self.a.k_major,
            b_k_major=self.b.k_major,
        )

    def results(self, accumulators: list[Any]) -> list[Any]:
        """Accumulators as the epilogue takes them: float16 ones are widened."""
        if not self.kind.packed:
            return accumulators
        return [value for word in accumulators for value in alu.widen_f16x2(word)]

    def columns(self, accumulators: list[Any], block: int, first: int, columns: int) -> list[Any]:
        """The accumulators of ``columns`` columns from ``first`` on, of one block, as they lie."""
        begin = block * self.each + first // 2
        return list(accumulators[begin : begin + columns // 2])

    def placed(self, thread: Any, accumulators: list[Any], block: int, first: int, columns: int) -> Placed:
        """Where the accumulators of ``columns`` columns from ``first`` on, of one block, lie.

        PTX ISA, "Register Fragments and Shared Memory Matrix Layouts" of wgmma, matrix D: a warp has 16 rows; register
        ``4 j + 2 h + e`` of a lane is row ``lane // 4 + 8 h``, column ``8 j + 2 (lane % 4) + e``.
        """
        lane, warp = thread & 31, thread >> 5
        registers = {}
        for j in range(columns // 8):
            for h in range(2):
                for e in range(2):
                    index = block * self.each + 4 * (first // 8 + j) + 2 * h + e
                    registers[8 * h, 8 * j + e] = accumulators[index]
        return Placed(m=warp * 16 + (lane >> 2), n=(lane & 3) * 2, registers=registers, widths=(1, 2))


def run(
    product: Product, ring: Ring, stage: Any, parity: Any, places: Any, lane: Any, k_tiles: Any, issued: Any
) -> Any:
    """One tile's accumulators, and the ring's next stage and parity; ``places`` are where the rows begin in A's tile
    and the columns in B's, in bytes.

    ``issued()`` is called when all products have been.
    """
    run_it = _run_empty if product.empty else _run if product.part is None else _run_promoting
    return run_it(product, ring, stage, parity, places, lane, k_tiles, issued)


def _run_empty(
    product: Product, ring: Ring, stage: Any, parity: Any, places: Any, lane: Any, k_tiles: Any, issued: Any
) -> Any:
    """``run`` where K is 0."""
    issued()
    return [alu.zero() for _ in range(product.blocks * product.each)], stage, parity


@cute.jit
def _run(
    product: Product, ring: Ring, stage: Any, parity: Any, places: Any, lane: Any, k_tiles: Any, issued: Any
) -> Any:
    """``run`` with one set of accumulators. A stage is given back when the products after its own have been issued.

    The first K tile stands before the loop, as it adds to nothing. A branch round it, for K = 0, would have the
    assembler wait for each product where zeros and products meet.
    """
    before = stage
    mbarrier.wait_parity(ring.full(stage), parity)
    accumulators = product.multiply(None, *_operands(ring, stage, places))
    stage, parity = ring.after(stage, parity)
    for _ in cutlass.range(1, k_tiles, unroll=1):
        mbarrier.wait_parity(ring.full(stage), parity)
        accumulators = product.multiply(accumulators, *_operands(ring, stage, places))
        accumulators = wgmma.wait_group(1, accumulators)
        ring.give_back(before, lane)
        before = stage
        stage, parity = ring.after(stage, parity)
    issued()
    accumulators = wgmma.wait_group(0, accumulators)
    ring.give_back(before, lane)
    return product.results(accumulators), stage, parity


@cute.jit
def _run_promoting(
    product: Product, ring: Ring, stage: Any, parity: Any, places: Any, lane: Any, k_tiles: Any, issued: Any
) -> Any:
    """``run`` with promotion.

    No product is under way at the loop's end: where one is, the assembler lets nothing read another one's registers.
    """
    sums = [alu.zero() for _ in range(product.blocks * product.each)]
    for _ in cutlass.range(k_tiles // product.together, unroll=1):
        sums, stage, parity = _promote(product, ring, stage, parity, places, lane, product.together, sums)
    if cutlass.const_expr(product.together > 1):
        for _ in cutlass.range(k_tiles % product.together, unroll=1):
            sums, stage, parity = _promote(product, ring, stage, parity, places, lane, 1, sums)
    issued()
    return sums, stage, parity


def _promote(
    product: Product, ring: Ring, stage: Any, parity: Any, places: Any, lane: Any, k_tiles: int, sums: list[Any]
) -> Any:
    """``sums`` and the products of the next ``k_tiles`` K tiles, and the ring's next stage and parity."""
    stages = []
    for _ in range(k_tiles):
        stages.append((stage, parity))
        stage, parity = ring.after(stage, parity)

    def come(number: int) -> Any:
        mbarrier.wait_parity(ring.full(stages[number][0]), stages[number][1])
        return _operands(ring, stages[number][0], places)

    sums = product.promoted(sums, k_tiles, come, lambda number: ring.give_back(stages[number][0], lane))
    return sums, stage, parity


def _operands(ring: Ring, stage: Any, places: tuple[Any, Any]) -> tuple[Any, Any]:
    """Where a warpgroup's rows of A and its columns of B lie."""
    address = ring.address(stage)
    return address + places[0], address + (ring.config.a_bytes + places[1])
