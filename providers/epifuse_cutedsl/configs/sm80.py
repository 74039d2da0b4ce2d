# SPDX-License-Identifier: Apache-2.0
"""Legal tiles of the portable kernel: rows by the class of the operands' dtype."""

from __future__ import annotations

import functools

from epifuse.records import NamedTuple
from epifuse_cutedsl.tile.smem import CHUNK_BYTES, align, resident_bytes
from epifuse_cutedsl.tile.stage import StageShape, run_that_fits

TENSOR_CLASSES = {"half": 2, "tf32": 4, "byte": 1}
PLAIN_CLASSES = {"f32": 4, "f64": 8}


class Sm80Config(NamedTuple):
    """A tile and how it is worked on. ``warps_m`` x ``warps_n`` warps share it in tensor classes; in plain ones
    ``threads_m`` x ``threads_n`` threads do."""

    kind: str
    tile_m: int
    tile_n: int
    tile_k: int
    stages: int
    warps_m: int = 0
    warps_n: int = 0
    threads_m: int = 0
    threads_n: int = 0

    @property
    def tensor(self) -> bool:
        """Whether tensor cores multiply."""
        return self.kind in TENSOR_CLASSES

    @property
    def element_bytes(self) -> int:
        """Bytes of an element of A and B."""
        return TENSOR_CLASSES[self.kind] if self.tensor else PLAIN_CLASSES[self.kind]

    @property
    def threads(self) -> int:
        """Threads of a CTA."""
        return 32 * self.warps_m * self.warps_n if self.tensor else self.threads_m * self.threads_n

    @property
    def stage_bytes(self) -> int:
        """Shared memory of one stage: a K tile of A and one of B, however they lie."""
        return stage_bytes(self.kind, self.tile_m, self.tile_n, self.tile_k)

    @property
    def epilogue_tile(self) -> tuple[int, int]:
        """Rows and columns that the epilogue's engine takes for a tile."""
        return self.tile_m, self.tile_n

    @property
    def words(self) -> str:
        """For the operator's name."""
        return f"{self.kind}_{self.tile_m}x{self.tile_n}x{self.tile_k}_s{self.stages}"

    def stage_shape(self, accumulator_bytes: int, axis: str, run: int) -> StageShape:
        """How accumulators go through shared memory for an epilogue that asks for runs of ``run`` along ``axis``."""
        fitting = run_that_fits(self.tile_m, self.tile_n, axis, self.threads, run)
        return StageShape(self.tile_m, self.tile_n, axis, accumulator_bytes, self.threads, fitting)

    def smem_bytes(self, accumulator_bytes: int, axis: str = "n") -> int:
        """Shared memory of a CTA, without the epilogue's scratch: the ring or the staged accumulators."""
        return max(self.stages * self.stage_bytes, align(self.stage_shape(accumulator_bytes, axis, 1).bytes))

    def __str__(self) -> str:
        return f"{self.kind} {self.tile_m}x{self.tile_n}x{self.tile_k} stages {self.stages} threads {self.threads}"


def stage_bytes(kind: str, tile_m: int, tile_n: int, tile_k: int) -> int:
    """Bytes of a stage; tiles of the plain classes are padded."""
    if kind in TENSOR_CLASSES:
        size = TENSOR_CLASSES[kind]
        return align(tile_m * tile_k * size) + align(tile_n * tile_k * size)
    size = PLAIN_CLASSES[kind]
    return sum(align(tile_k * (extent * size + CHUNK_BYTES)) for extent in (tile_m, tile_n))


# Tile and warps; the warps' own tiles are at most 64 x 64, which 128 of the 255 registers of a thread accumulate. Then
# how many CTAs an SM is to hold, for K tiles of two steps (64 bytes) and of four (128 bytes): one CTA's epilogue hides
# behind another's products, and longer K tiles have fewer barriers (H200, 4096^3 bf16:
# 128x256 434 against 372 TFLOP/s).
# (tile_m, tile_n, warps_m, warps_n, CTAs for 64 bytes, CTAs for 128 bytes)
_TENSOR_TILES: tuple[tuple[int, int, int, int, tuple[int, ...], tuple[int, ...]], ...] = (
    (16, 64, 1, 2, (4,), (2,)),
    (32, 64, 1, 2, (4,), (2,)),
    (64, 64, 2, 2, (3,), (3,)),
    (64, 128, 1, 4, (3,), (3, 2)),
    (64, 256, 1, 4, (2,), (1,)),
    (128, 64, 2, 2, (3,), (3, 2)),
    (128, 128, 2, 2, (2,), (2, 1)),
    (128, 256, 2, 4, (1,), (1,)),
    (256, 128, 4, 2, (1,), (1,)),
)
_MOST_STAGES = {64: 6, 128: 4}
_MOST_STAGES_SKINNY = 8
_SKINNY_M = 32
# (tile_m, tile_n, tile_k, threads_m, threads_n)
_PLAIN_TILES = {
    "f32": (
        (16, 64, 16, 4, 16),
        (32, 64, 16, 8, 16),
        (64, 64, 16, 16, 16),
        (128, 64, 16, 16, 8),
        (128, 128, 16, 16, 16),
    ),
    "f64": (
        (16, 64, 8, 8, 16),
        (32, 64, 8, 8, 16),
        (64, 64, 8, 16, 16),
        (128, 64, 8, 16, 16),
    ),
}
_PLAIN_STAGES = 4


@functools.lru_cache(maxsize=64)
def configurations(kind: str, accumulator_bytes: int, cc: int, scratch_bytes: int = 0) -> tuple[Sm80Config, ...]:
    """Every legal configuration of a dtype class on a compute capability, in table order.

    Stages are as many as fit with the row's number of CTAs on an SM (or the next smaller number with which anything
    fits), at most what the row says and at least two; a tile whose accumulators cannot be staged, with
    ``scratch_bytes`` beside them, is left out.
    """
    found: dict[Sm80Config, None] = {}
    for fields, most, residents in _rows(kind):
        for resident in residents:
            legal = (
                _config(kind, fields, most, accumulator_bytes, cc, r, scratch_bytes) for r in range(resident, 0, -1)
            )
            config = next((c for c in legal if c is not None), None)
            if config is not None:
                found[config] = None
    return tuple(found)


def _config(
    kind: str, fields: tuple[int, ...], most: int, accumulator_bytes: int, cc: int, resident: int, scratch_bytes: int
) -> Sm80Config | None:
    """A row with as many stages as let ``resident`` CTAs share an SM, or None."""
    limit = resident_bytes(cc, resident)
    tile_m, tile_n, tile_k, *rest = fields
    room = min(most, (limit - scratch_bytes) // stage_bytes(kind, tile_m, tile_n, tile_k))
    config = Sm80Config(kind, tile_m, tile_n, tile_k, room, *rest)
    staged = max(config.smem_bytes(accumulator_bytes, axis) for axis in "nm")
    return config if room >= 2 and staged + scratch_bytes <= limit else None


def _rows(kind: str) -> list[tuple[tuple[int, ...], int, tuple[int, ...]]]:
    """Fields of ``Sm80Config`` without kind and stages, the most stages, and CTAs on an SM."""
    if kind in PLAIN_CLASSES:
        return [((m, n, k, 0, 0, tm, tn), _PLAIN_STAGES, (1,)) for m, n, k, tm, tn in _PLAIN_TILES[kind]]
    size = TENSOR_CLASSES[kind]
    rows = []
    for m, n, wm, wn, few, many in _TENSOR_TILES:
        for k_bytes, residents in ((64, few), (128, many)):
            most = _MOST_STAGES_SKINNY if k_bytes == 128 and m <= _SKINNY_M else _MOST_STAGES[k_bytes]
            rows.append(((m, n, k_bytes // size, wm, wn), most, residents))
    return rows
