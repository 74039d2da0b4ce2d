# SPDX-License-Identifier: Apache-2.0
"""``Sm90Gemm``: a persistent CTA of a producing warpgroup and two or three that consume. Host entry and kernel body."""

from __future__ import annotations

import functools
from typing import Any

import cutlass
from cutlass import Int32, Uint8, cute
from cutlass.cute import arch

from epifuse_cutedsl import compat
from epifuse_cutedsl.configs.sm90 import OPERAND_MAPS, REGISTERS, WARPGROUP, WARPGROUP_WARPS, Sm90Config
from epifuse_cutedsl.configs.sm90_products import ProductKind
from epifuse_cutedsl.fuse.boxes import MOST_MAPS
from epifuse_cutedsl.fuse.control import either, when
from epifuse_cutedsl.fuse.fragment import Extents
from epifuse_cutedsl.kernels.ptx import alu, cluster, mbarrier, tma, wgmma
from epifuse_cutedsl.kernels.sm90 import consumer, direct, epilogue, producer
from epifuse_cutedsl.kernels.sm90.ring import Ring
from epifuse_cutedsl.kernels.sm90.schedule import Division, Schedule
from epifuse_cutedsl.kernels.sm90.split import Split
from epifuse_cutedsl.tile.division import DIVISORS
from epifuse_cutedsl.tile.smem import ALIGNMENT_BYTES

TensorMap = compat.tensor_map_parameter()
MAPS = OPERAND_MAPS + MOST_MAPS
"""Tensor maps among the parameters, before the numbers: A's, B's, those of their last tiles, those of the epilogue's
boxes (zeros if unused)."""
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
    ("stagger", "i32"),
    ("streamed", "i32"),
    ("edges", "i32"),
    *((f"by_{name}", "i32") for name in DIVISORS),
    ("shifts", "i32"),
)
"""Names and types of the main loop's numbers, in order, behind the tensor maps; the epilogue's follow.

With swapped operands, A is the problem's B, and M its N.

``a_batched`` is 0 where one matrix serves all batches, else 1. ``stagger``: so many K tiles further on begins each tile
than the one before. ``streamed``: 1 where A is read once and is larger than the second-level cache, 2 where B is, 0
where neither is. ``edges``: 1 where rows of tiles beyond the operands are not copied, 0 where they are filled with
zeros. The last ones serve to divide by ``DIVISORS`` (``tile.division``).
"""


class Sm90Gemm:
    """The Hopper kernel for one configuration, kind of product, majors of A and B, instructions between promotions, and
    epilogue; ``empty``: K is 0."""

    def __init__(
        self,
        config: Sm90Config,
        kind: ProductKind,
        a_major: str,
        b_major: str,
        interval: int,
        empty: bool,
        epilogue: Any,
    ) -> None:
        self.config, self.epilogue = config, epilogue
        a_major, b_major = config.turned((a_major, b_major))
        self.a, self.b = config.operand_tiles(a_major == "k", b_major == "k")
        size = (config.blocks, config.columns)
        self.product = consumer.Product(self.a, self.b, kind, *size, config.part, interval, empty)
        self.stage = config.stage_shape(epilogue.axis, epilogue.run)

    @property
    def smem_bytes(self) -> int:
        """Dynamic shared memory."""
        return self.config.smem_bytes(self.epilogue.scratch_bytes)

    @property
    def block(self) -> tuple[int, int, int]:
        """Threads of a CTA."""
        return (self.config.threads, 1, 1)

    @property
    def cluster(self) -> tuple[int, int, int]:
        """CTAs of a cluster."""
        return (self.config.ctas, 1, 1)

    @cute.jit
    def __call__(self, numbers: list) -> None:
        """Launch persistent CTAs. The numbers are ``NUMBERS``, then the epilogue's."""
        anything = compat.some_tensor_map(numbers[0])
        self.kernel(*([anything] * MAPS), numbers).launch(
            grid=list(self.cluster),
            block=list(self.block),
            cluster=list(self.cluster),
            smem=self.smem_bytes,
            min_blocks_per_mp=int(self.product.light),
        )

    @cute.kernel
    def kernel(
        self,
        map_a: TensorMap,
        map_b: TensorMap,
        edge_a: TensorMap,
        edge_b: TensorMap,
        map_0: TensorMap,
        map_1: TensorMap,
        map_2: TensorMap,
        map_3: TensorMap,
        numbers: list,
    ) -> None:
        """The kernel's body: the warpgroups part."""
        m, n, k, batches, a_batched, b_batched, tiles_m, tiles_n, group, stagger, streamed, edges, *division = numbers[
            : len(NUMBERS)
        ]
        config = self.config
        thread = arch.thread_idx()[0]
        warpgroup = arch.make_warp_uniform(thread // WARPGROUP)
        base = arch.get_dyn_smem(Uint8, alignment=ALIGNMENT_BYTES).toint()
        first, step, number, share = arch.block_idx()[0], arch.grid_dim()[0], Int32(0), Int32(0)
        if cutlass.const_expr(config.ctas > 1):
            first, step, number = first // config.ctas, step // config.ctas, first % config.ctas
        if cutlass.const_expr(config.split > 1):
            number, share = share, number
        rank = number % config.cluster, number // config.cluster
        ring = Ring(config, base, base + self._barriers, rank)
        mine = alu.and_b32(thread, WARPGROUP - 1)
        maps = [each.get_ptr().toint() for each in (map_0, map_1, map_2, map_3)]
        extents = Extents(*config.turned((m, n)), batches)
        tail = self._tail(base, warpgroup, mine, maps, extents, numbers[len(NUMBERS) :])
        readers = WARPGROUP_WARPS * (1 if config.pingpong else config.consumers) * ring.sharers
        when(thread == 0, lambda: ring.make_barriers(readers))
        split = self._split(base, warpgroup, mine, share)
        for each in (tail, split) if config.split > 1 else (tail,):
            when(((thread & 31) == 0) & (warpgroup < config.consumers), each.make_barriers)
        cluster.launch_dependents()
        operands = [each.get_ptr().toint() for each in (map_a, map_b, edge_a, edge_b)]
        used = [*operands, *maps[: self._epilogue_maps]]
        producing = (thread == config.consumers * WARPGROUP) & (k > Int32(0))  # K = 0: there are no tensor maps
        when(producing, lambda: [tma.prefetch_tensormap(each) for each in used])
        self._meet()
        k_tiles = (k + (config.tile_k - 1)) // config.tile_k
        least = k_tiles // config.split
        first_k_tile = k_tiles * share // config.split
        k_tiles = k_tiles * (share + 1) // config.split - first_k_tile
        tiles = tiles_m * tiles_n * batches
        by = Division(tuple(division[:-1]), division[-1], group)
        schedule = Schedule(config, first, step, tiles, tiles_m, tiles_n, group, rank, by, stagger, least)
        beside = sum(1 << config.cluster * i for i in range(config.cluster_n)) << rank[0]
        below = ((1 << config.cluster) - 1) << rank[1] * config.cluster
        a = producer.Source(operands[0], operands[2], self.a, m, a_batched, rank[1], beside)
        b = producer.Source(operands[1], operands[3], self.b, n, b_batched, rank[0], below)
        load = functools.partial(producer.run, ring, schedule, a, b, first_k_tile, k_tiles, streamed)
        clearing = producer.Clearing(ring, schedule, a, b)

        def produce() -> None:
            wgmma.setmaxnreg(REGISTERS[config.consumers][0], increase=False)
            loads = (arch.make_warp_uniform(thread >> 5) == config.consumers * WARPGROUP_WARPS) & (k_tiles > Int32(0))
            whole, cut = functools.partial(load, edges=False), functools.partial(load, edges=True)
            when(loads, lambda: either(edges > 0, cut, whole))
            other = thread - (config.threads - producer.CLEARERS)
            when((edges > 0) & (other >= 0), lambda: clearing.run(other))

        def consume() -> None:
            wgmma.setmaxnreg(REGISTERS[config.consumers][1], increase=True)
            when(edges > 0, clearing.wait)
            _consume(self.product, ring, schedule, tail, split, mine, warpgroup, k_tiles)

        either(warpgroup == config.consumers, produce, consume)
        if cutlass.const_expr(config.ctas > 1):
            cluster.sync()  # until then, others copy into this CTA's memory and arrive at its mbarriers

    @property
    def _epilogue_maps(self) -> int:
        """How many of its tensor maps are in use."""
        boxes = self.epilogue.boxes
        return len(boxes.numbered_outputs()) + len(boxes.numbered_loads()) if self.config.tail.direct else 0

    def _meet(self) -> None:
        """All threads that share mbarriers."""
        if self.config.ctas > 1:
            cluster.sync()
        else:
            arch.sync_threads()

    @property
    def _staged(self) -> int:
        """Where the staged tiles begin, behind the ring and other CTAs' accumulators; then come the epilogues' scratch
        memories."""
        return self.config.stages * self.config.stage_bytes + self.config.split_bytes

    def _tail(
        self, base: Any, warpgroup: Any, thread: Any, maps: list[Any], extents: Extents, parameters: list[Any]
    ) -> Any:
        """The epilogue's kind, with this warpgroup's (and warp's) own memory."""
        config, staged, scratch = self.config, self.config.staged_bytes, self.epilogue.scratch_bytes
        first = base + self._staged
        kept_bytes, behind = config.kept_bytes, first + config.consumers * staged
        mine, kept = first + warpgroup * staged, behind + warpgroup * kept_bytes
        shared_scratch = behind + config.consumers * kept_bytes + warpgroup * scratch
        accumulator = self.product.kind.result
        if not config.tail.direct:
            memory = epilogue.Memory(mine, shared_scratch, warpgroup + 1)
            return epilogue.StagedTail(config, self.stage, self.epilogue, parameters, extents, memory, accumulator)
        warp = arch.make_warp_uniform(thread >> 5)
        arrived = base + self._barriers + Ring.barriers_bytes(config)
        arrived = arrived + (warpgroup * WARPGROUP_WARPS + warp) * (config.depth * mbarrier.BYTES)
        own = direct.Memory(mine + warp * config.warp_bytes, arrived, kept, shared_scratch, warpgroup + 1)
        return direct.DirectTail(config, self.epilogue, parameters, extents, own, maps, thread & 31, accumulator)

    def _split(self, base: Any, warpgroup: Any, thread: Any, share: Any) -> Split:
        """This warp's part in the sums of the CTAs that share K."""
        config = self.config
        number = arch.make_warp_uniform(warpgroup * WARPGROUP_WARPS + (thread >> 5))
        memory = base + config.stages * config.stage_bytes
        loads = config.consumers * WARPGROUP_WARPS * config.depth * mbarrier.BYTES
        barriers = base + self._barriers + Ring.barriers_bytes(config) + loads
        return Split(config, share, number, thread & 31, memory, barriers, self.product.kind.result)

    @property
    def _barriers(self) -> int:
        each = self.config.staged_bytes + self.config.kept_bytes + self.epilogue.scratch_bytes
        return self._staged + self.config.consumers * each


@cute.jit
def _consume(
    product: Any, ring: Any, schedule: Any, tail: Any, split: Any, thread: Any, warpgroup: Any, k_tiles: Any
) -> None:
    """All tiles of one consumer warpgroup.

    The next tile's place is found before the products: behind them, the assembler puts it before the other warpgroup's
    turn. Promoted sums leave no registers for it.
    """
    config = ring.config
    stage, parity, first, step = Int32(0), Int32(0), schedule.first, schedule.step
    turns, turn = consumer.Turns(warpgroup), Int32(0)
    row, column, in_a, in_b = Int32(0), Int32(0), Int32(0), Int32(0)
    if cutlass.const_expr(config.pingpong):
        first, step = first + warpgroup * step, step * config.consumers
        stage, parity = ring.skip(stage, parity, warpgroup * k_tiles)
        when(warpgroup == 1, turns.give)
    elif cutlass.const_expr(config.shares_columns):
        column, in_b = warpgroup * config.columns, warpgroup * product.b.position_bytes(config.columns)
    else:
        row, in_a = warpgroup * config.rows, warpgroup * product.a.position_bytes(config.rows)
    lane = thread & 31
    batch, m, n = schedule.place(first)
    cluster.wait_for_grids_before()
    for index in cutlass.range(first, schedule.tiles, step, unroll=1):
        pieces = tail.tiles(batch, m + row, n + column, thread)
        if cutlass.const_expr(config.split > 1):
            when(split.rank == 0, lambda pieces=pieces: tail.start(pieces))
        else:
            tail.start(pieces)
        rows = tail.rows(pieces[0])
        following: Any = None
        if cutlass.const_expr(config.part is None):
            following = [alu.computed_here(each) for each in schedule.place(index + step)]
        if cutlass.const_expr(config.pingpong):
            turns.take(following if config.early_places else ())
        begun: list[Any] = []
        more = index + schedule.step < schedule.tiles
        issued = _afterwards(turns if config.pingpong else None, more, tail, pieces[0], rows, begun)
        accumulators, stage, parity = consumer.run(product, ring, stage, parity, (in_a, in_b), lane, k_tiles, issued)
        if cutlass.const_expr(config.pingpong):
            stage, parity = ring.skip(stage, parity, k_tiles)
        if cutlass.const_expr(config.split > 1):
            finish = functools.partial(_finish_split, product, tail, split, accumulators, pieces, begun[0], turn)
            either(split.rank == 0, finish, functools.partial(split.send, accumulators, turn))
        else:
            tail.run(product, accumulators, pieces, begun[0], turn)
        if cutlass.const_expr(config.part is not None):
            following = schedule.place(index + step)
        turn = turn + 1
        batch, m, n = following
    tail.finish()


def _finish_split(product: Any, tail: Any, split: Any, accumulators: Any, pieces: Any, ahead: Any, turn: Any) -> None:
    """The epilogue on the sums of all CTAs that share K."""
    tail.run(product, split.receive(accumulators, turn), pieces, ahead, turn)


def _afterwards(turns: Any, more: Any, tail: Any, piece: Any, rows: Any, begun: list[Any]) -> Any:
    """What happens when a tile's products have been issued: the other's turn, ``rows`` go to shared memory, and the
    epilogue's first loads, which are put into ``begun``."""

    def issued() -> None:
        if turns is not None:
            when(more, turns.give)
        tail.keep(rows)
        begun.append(tail.begin(piece))

    return issued
