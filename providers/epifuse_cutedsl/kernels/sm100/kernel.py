# SPDX-License-Identifier: Apache-2.0
"""``Sm100Gemm``: a persistent CTA of four epilogue warps, a product warp and a load warp. Host entry and body."""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Int32, Uint8, cute
from cutlass.cute import arch

from epifuse_cutedsl import compat
from epifuse_cutedsl.configs.sm100 import (
    ANSWERS,
    ASK_WARP,
    BARRIERS_BYTES,
    EPILOGUE_WARPS,
    LOAD_WARP,
    MMA_WARP,
    SLOTS,
    WARP,
    Sm100Config,
)
from epifuse_cutedsl.configs.sm100_products import Product
from epifuse_cutedsl.fuse.boxes import MOST_MAPS, PIECE_BUFFERS
from epifuse_cutedsl.fuse.control import when
from epifuse_cutedsl.fuse.fragment import Extents
from epifuse_cutedsl.kernels.copies import WarpCopies
from epifuse_cutedsl.kernels.ptx import alu, cluster, launch_control, mbarrier, shared, tcgen05
from epifuse_cutedsl.kernels.ptx.asm import emit
from epifuse_cutedsl.kernels.sm100 import epilogue, loader, product, schedule
from epifuse_cutedsl.kernels.sm100.ring import Ranks, Ring
from epifuse_cutedsl.tile.smem import ALIGNMENT_BYTES

TensorMap = compat.tensor_map_parameter()
MAPS = 2 + MOST_MAPS
NUMBERS: tuple[tuple[str, str], ...] = (
    ("m", "i32"),
    ("n", "i32"),
    ("k", "i32"),
    ("l", "i32"),
    ("a_batched", "i32"),
    ("b_batched", "i32"),
    ("tiles_m", "i32"),
    ("tiles_n", "i32"),
    ("group", "i32"),
)
"""Names and types of the main loop's numbers, in order, behind the tensor maps of A and B; the epilogue's follow.

``a_batched`` is 0 where one matrix serves all batches, else 1; tiles are those of whole clusters.
"""
_END_BARRIER = 8


class Sm100Gemm:
    """The Blackwell kernel for one configuration, a product's row, an epilogue."""

    def __init__(self, config: Sm100Config, row: Product, epilogue: Any) -> None:
        self.config, self.epilogue = config, epilogue
        self.multiplier = product.Multiplier(config, row)
        self.piece = config.piece(epilogue.axis, bool(epilogue.plan.reduces))

    @property
    def scratch_bytes(self) -> int:
        """Shared memory of one piece's reductions and row vectors."""
        return epilogue.rows_begin(self.epilogue) + self.epilogue.kept_bytes

    @property
    def smem_bytes(self) -> int:
        """Dynamic shared memory."""
        return self.config.smem_bytes(EPILOGUE_WARPS // self.piece.warps * epilogue.rows_begin(self.epilogue))

    @property
    def block(self) -> tuple[int, int, int]:
        """Threads of a CTA."""
        return (self.config.threads, 1, 1)

    @property
    def cluster(self) -> tuple[int, int, int]:
        """CTAs of a cluster."""
        return (self.config.cluster, 1, 1)

    @property
    def columns(self) -> int:
        """Columns of tensor memory."""
        return SLOTS * self.config.slot_columns

    @cute.jit
    def __call__(self, numbers: list) -> None:
        """Launch persistent CTAs. The numbers are ``NUMBERS``, then the epilogue's."""
        anything = compat.some_tensor_map(numbers[0])
        self.kernel(*([anything] * MAPS), numbers).launch(
            grid=list(self.cluster), block=list(self.block), cluster=list(self.cluster), smem=self.smem_bytes
        )

    @cute.kernel
    def kernel(
        self,
        map_a: TensorMap,
        map_b: TensorMap,
        map_0: TensorMap,
        map_1: TensorMap,
        map_2: TensorMap,
        map_3: TensorMap,
        numbers: list,
    ) -> None:
        """The kernel's body: the warps part, and meet again to give tensor memory back."""
        m, n, k, batches, a_batched, b_batched, tiles_m, tiles_n, group = numbers[: len(NUMBERS)]
        config = self.config
        thread = arch.thread_idx()[0]
        warp, lane = arch.make_warp_uniform(thread // WARP), alu.and_b32(thread, WARP - 1)
        base = arch.get_dyn_smem(Uint8, alignment=ALIGNMENT_BYTES).toint()
        first, step, rank = arch.block_idx()[0], arch.grid_dim()[0], Int32(0)
        if cutlass.const_expr(config.cluster > 1):
            first, step, rank = first // config.cluster, step // config.cluster, first % config.cluster
        ranks = Ranks.of(config, rank)
        ring = Ring(config, ranks, base, base + self._barriers)
        maps = [each.get_ptr().toint() for each in (map_0, map_1, map_2, map_3)]
        copies = self._copies(base, ring, warp, lane, maps)
        walk = self._walk(ring, (ranks, first, step, tiles_m * tiles_n * batches, tiles_m, tiles_n, group))
        when(thread == MMA_WARP * WARP, ring.make_barriers)
        if cutlass.const_expr(config.dynamic):
            when(thread == ASK_WARP * WARP, walk.make_barriers)
        when((lane == 0) & (warp < EPILOGUE_WARPS), copies.make_barriers)
        when(warp == 0, lambda: tcgen05.alloc(ring.allocated, self.columns, config.ctas))
        tcgen05.fence_before()
        cluster.launch_dependents()
        self._meet()
        tcgen05.fence_after()
        memory = shared.ld_shared(ring.allocated)[0]
        k_tiles = (k + (config.tile_k - 1)) // config.tile_k

        def load() -> None:
            a = loader.Source(map_a.get_ptr().toint(), config.a, a_batched, ranks.n, ranks.same_m)
            b = loader.Source(map_b.get_ptr().toint(), config.b, b_batched, ranks.m // config.ctas, ranks.same_n)
            when(tcgen05.elect(), lambda: loader.run(ring, walk, a, b, k_tiles))

        def multiply() -> None:
            when(ranks.leads, lambda: product.run(self.multiplier, ring, walk, memory, k_tiles))

        def ask() -> None:
            when(tcgen05.elect(), lambda: schedule.run(walk))

        def finish() -> None:
            reader = epilogue.Reader(config, self.piece, warp, lane)
            scratch = base + self._scratch + warp // self.piece.warps * self.scratch_bytes
            rest = numbers[len(NUMBERS) :]
            tail = epilogue.Tail(reader, self.epilogue, rest, Extents(m, n, batches), scratch, copies)
            epilogue.run(tail, ring, walk, memory, k_tiles)
            emit(f"bar.sync {_END_BARRIER}, {EPILOGUE_WARPS * WARP};")
            when(warp == 0, lambda: tcgen05.dealloc(memory, self.columns, config.ctas))

        when(warp < EPILOGUE_WARPS, finish)
        when(warp == MMA_WARP, multiply)
        when(warp == LOAD_WARP, load)
        if cutlass.const_expr(config.dynamic):
            when(warp == ASK_WARP, ask)
        if cutlass.const_expr(config.cluster > 1):
            cluster.sync()  # until then, others copy into this CTA's memory and arrive at its mbarriers

    def _meet(self) -> None:
        """All threads that share mbarriers."""
        if self.config.cluster > 1:
            cluster.sync()
        else:
            arch.sync_threads()

    def _walk(self, ring: Ring, where: tuple[Any, ...]) -> schedule.Schedule:
        """The schedule; a dynamic one's answers and mbarriers lie behind the copies' mbarriers."""
        if not self.config.dynamic:
            return schedule.Schedule(*where)
        answers = ring.behind + EPILOGUE_WARPS * PIECE_BUFFERS * mbarrier.BYTES
        return schedule.DynamicSchedule(*where, answers, answers + ANSWERS * launch_control.ANSWER_BYTES)

    def _copies(self, base: Any, ring: Ring, warp: Any, lane: Any, maps: list[Any]) -> WarpCopies:
        """The warp's buffers, behind the ring, and their mbarriers, behind the ring's."""
        tail = self.config.tail
        copied = base + self._copied + warp * (tail.bytes // EPILOGUE_WARPS)
        arrived = ring.behind + warp * (PIECE_BUFFERS * mbarrier.BYTES)
        return WarpCopies(self.epilogue.plan, self.epilogue.boxes, maps, copied, arrived, lane)

    @property
    def _copied(self) -> int:
        return self.config.stages * self.config.stage_bytes

    @property
    def _scratch(self) -> int:
        """Where the epilogues' scratch memories begin, behind the warps' buffers."""
        return self._copied + self.config.tail.bytes

    @property
    def _barriers(self) -> int:
        return self.smem_bytes - BARRIERS_BYTES
