# SPDX-License-Identifier: Apache-2.0
"""``Sm80Gemm``: one CTA multiplies one tile and hands it to the epilogue. Host entry and kernel body."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import cutlass
from cutlass import Int32, Int64, Uint8, Uint32, cute
from cutlass.cute import arch

from epifuse.dtypes import DType
from epifuse_cutedsl.configs.sm80 import Sm80Config
from epifuse_cutedsl.fuse.fragment import Extents, TileCoordinates
from epifuse_cutedsl.kernels.sm80 import simt, stage, tensor
from epifuse_cutedsl.kernels.sm80.copy import TileCopy, copy_shape
from epifuse_cutedsl.kernels.sm80.fragments import Fragments
from epifuse_cutedsl.kernels.sm80.operand import MainTraits
from epifuse_cutedsl.kernels.sm80.ring import Ring
from epifuse_cutedsl.tile.scheduler import floor_division, serpentine, tile_of
from epifuse_cutedsl.tile.smem import ALIGNMENT_BYTES

PARAMETERS: tuple[tuple[str, str], ...] = (
    ("a", "i64"),
    ("b", "i64"),
    ("m", "i32"),
    ("n", "i32"),
    ("k", "i32"),
    ("l", "i32"),
    ("a_m", "i64"),
    ("a_k", "i64"),
    ("a_l", "i64"),
    ("b_n", "i64"),
    ("b_k", "i64"),
    ("b_l", "i64"),
    ("tiles_m", "i32"),
    ("tiles_n", "i32"),
    ("group", "i32"),
)
"""Names and types of the main loop's parameters, in order; the epilogue's follow. Strides count elements."""


class Sm80Gemm:
    """The portable kernel for one configuration, the traits of A and B, an accumulator dtype and an epilogue."""

    def __init__(self, config: Sm80Config, a: MainTraits, b: MainTraits, accumulator: DType, epilogue: Any) -> None:
        self.config, self.a, self.b, self.accumulator, self.epilogue = config, a, b, accumulator, epilogue
        tensor_cores = config.tensor
        self.copy_a = copy_shape(a, config.tile_m, config.tile_k, config.threads, tensor=tensor_cores)
        self.copy_b = copy_shape(b, config.tile_n, config.tile_k, config.threads, tensor=tensor_cores)
        self.stage = config.stage_shape(accumulator.bytes, epilogue.axis, epilogue.run)
        self.loop: tensor.TensorLoop | simt.SimtLoop = self._tensor_loop() if tensor_cores else self._simt_loop()

    def _tensor_loop(self) -> tensor.TensorLoop:
        config, tile_a, tile_b = self.config, self.copy_a.tile, self.copy_b.tile
        size = self.a.dtype.bytes
        return tensor.TensorLoop(
            a=Fragments(tile_a, True, self.a.major == "k", size, config.tile_m // config.warps_m),
            b=Fragments(tile_b, False, self.b.major == "k", size, config.tile_n // config.warps_n),
            a_dtype=self.a.dtype.name,
            b_dtype=self.b.dtype.name,
            accumulator=self.accumulator.name,
            tile_k=config.tile_k,
            warps_m=config.warps_m,
            warps_n=config.warps_n,
        )

    def _simt_loop(self) -> simt.SimtLoop:
        config = self.config
        threads_m, threads_n = config.threads_m, config.threads_n
        return simt.SimtLoop(
            a=self.copy_a.tile,
            b=self.copy_b.tile,
            element_bytes=self.a.dtype.bytes,
            tile_k=config.tile_k,
            threads_m=threads_m,
            threads_n=threads_n,
            micro_m=config.tile_m // threads_m,
            micro_n=config.tile_n // threads_n,
        )

    @property
    def smem_bytes(self) -> int:
        """Dynamic shared memory: the ring, over which the accumulators are staged, and the epilogue's scratch."""
        return self.config.smem_bytes(self.accumulator.bytes, self.epilogue.axis) + self.epilogue.scratch_bytes

    @property
    def block(self) -> tuple[int, int, int]:
        """Threads of a CTA."""
        return (self.config.threads, 1, 1)

    @cute.jit
    def __call__(self, parameters: list) -> None:
        """Launch one CTA a tile. The numbers are those of ``PARAMETERS``, then the epilogue's."""
        tiles = parameters[12] * parameters[13] * parameters[5]
        self.kernel(parameters).launch(grid=[tiles, 1, 1], block=list(self.block), smem=self.smem_bytes)

    @cute.kernel
    def kernel(self, parameters: list) -> None:
        """The kernel's body."""
        _, _, m, n, k, batches, _, _, _, _, _, _, tiles_m, tiles_n, group = parameters[: len(PARAMETERS)]
        thread = arch.thread_idx()[0]
        pid = arch.block_idx()[0]
        batch, tile_m, tile_n = place_of(pid, tiles_m, tiles_n, group)
        origin_m, origin_n = tile_m * self.config.tile_m, tile_n * self.config.tile_n
        base = arch.get_dyn_smem(Uint8, alignment=ALIGNMENT_BYTES).toint()
        ring = self._ring(parameters, thread, base, origin_m, origin_n, batch)
        k_tiles = (k + (self.config.tile_k - 1)) // self.config.tile_k
        if cutlass.const_expr(self.config.tensor):
            accumulators = tensor.run(self.loop, ring, thread, k_tiles)
        else:
            accumulators = simt.run(self.loop, ring, thread, k_tiles)
        tile = TileCoordinates(origin_m, origin_n, batch, thread, thread // 32, thread & 31)
        epilogue = self.epilogue.bind(parameters[len(PARAMETERS) :], tile, Extents(m, n, batches))
        first = stage.places(self.stage, tile, *self.stage.start(thread))
        state = epilogue.tile_begin(first)
        pieces = epilogue.load_step(first)
        stage.write(self.stage, base, self.loop.placed(thread, accumulators))
        arch.sync_threads()
        state = self._visit_all(epilogue, tile, base, self._steps(m, n, tile), pieces, state)
        state = epilogue.reduce_flush(state, base + self._scratch)
        epilogue.tile_end(state)

    def _visit_all(
        self, epilogue: Any, tile: TileCoordinates, base: Any, steps: Any, pieces: list[Any], state: list[Any]
    ) -> list[Any]:
        """All steps of the epilogue: a loop on the device, so that the code of a visit stands once.

        The loads of a step are issued before the visit of the step before it (the last step's loads twice). So a thread
        still reads each element before it writes there, whatever outputs share memory with operands.
        """
        shape = self.stage
        line, place = shape.start(tile.thread)
        address = base + (shape.pitch * line + place) * shape.element_bytes

        def visit(line: Any, address: Any, pieces: list[Any], state: list[Any]) -> tuple[Any, ...]:
            places = stage.places(self.stage, tile, line, place)
            registers = stage.read(shape, address, self.accumulator.name)
            following = line + shape.lines_per_step
            ahead = cutlass.select_(following < shape.lines, following, line)
            next_pieces = epilogue.load_step(stage.places(self.stage, tile, ahead, place))
            state = epilogue.visit(replace(places, registers=tuple(registers)), pieces, state)
            step_bytes = shape.lines_per_step * shape.pitch * shape.element_bytes
            return following, address + step_bytes, next_pieces, state

        return stage.repeat(visit, steps, line, address, pieces, state)

    @property
    def _scratch(self) -> int:
        """Where the epilogue's scratch memory begins."""
        return self.config.smem_bytes(self.accumulator.bytes, self.epilogue.axis)

    def _ring(self, parameters: Any, thread: Any, base: Any, origin_m: Any, origin_n: Any, batch: Any) -> Ring:
        a, b, m, n, k, _, a_m, a_k, a_l, b_n, b_k, b_l = parameters[:12]
        address_a = a + Int64(batch) * a_l * self.a.dtype.bytes
        address_b = b + Int64(batch) * b_l * self.b.dtype.bytes
        return Ring(
            base=base,
            stages=self.config.stages,
            a=TileCopy(self.copy_a, thread, address_a, origin_m, m, a_m, a_k),
            b=TileCopy(self.copy_b, thread, address_b, origin_n, n, b_n, b_k),
            tile_k=self.config.tile_k,
            k_extent=k,
        )

    def _steps(self, m: Any, n: Any, tile: TileCoordinates) -> Any:
        """Steps with a line inside the problem."""
        left = m - tile.m0 if self.stage.axis == "n" else n - tile.n0
        steps = (left + (self.stage.lines_per_step - 1)) // self.stage.lines_per_step
        return cutlass.select_(steps < self.stage.steps, steps, Int32(self.stage.steps))


def place_of(
    pid: Any,
    tiles_m: Any,
    tiles_n: Any,
    group: Any,
    *,
    turns: bool = False,
    divide: Callable[[Any, Any, str], Any] = floor_division,
) -> tuple[Any, Any, Any]:
    """Batch and tile of a CTA, all Int32. ``turns``: every other group goes backwards (``serpentine``). ``divide``: as
    in ``tile_of``, and by the tiles of a batch ("batch"); all Uint32."""
    pid, tiles_m, tiles_n, group = Uint32(pid), Uint32(tiles_m), Uint32(tiles_n), Uint32(group)
    batch = divide(pid, tiles_m * tiles_n, "batch")
    within = pid - batch * (tiles_m * tiles_n)
    tile_m, tile_n = tile_of(within, tiles_m, tiles_n, group, divide)
    if turns:
        tile_n = serpentine(within, tile_n, tiles_n, group, divide)
    return Int32(batch), Int32(tile_m), Int32(tile_n)
