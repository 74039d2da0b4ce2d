# SPDX-License-Identifier: Apache-2.0
"""What the Hopper kernel's configurations take."""

from __future__ import annotations

import functools

from epifuse.arguments import GemmArguments
from epifuse.target import TargetSm
from epifuse_cutedsl.configs.model import (
    Copies,
    Overlap,
    Persistent,
    PersistentTimes,
    Traffic,
    persistent_us,
    tiles_and_slots,
    work_of,
)
from epifuse_cutedsl.configs.sm90 import Sm90Config

Row = tuple[int, int, int, bool, tuple[int, int], int, int]
"""tile_m, tile_n, bytes of K in a tile, ping-pong, cluster along M and N, depth, split."""

# Fitted to the logarithms of times on an H200 (bfloat16, B K-major, direct epilogue, groups of 8), then moved until the
# table puts first what was fastest: 33 problems, 21 of bias and relu from 512^3 to 8192 x 4096 x 14336, and 12 with
# gelu, two outputs or C. On 31 of them it does, to 1 %; 256 x 4096 x 8192 is 7 % off. A hidden epilogue shows in no
# time: its column is then what bytes and instructions take at least. 8-bit operands are multiplied twice as fast: a K
# tile of as many bytes takes as long, and the rows serve them as well.
# fmt: off
MEASURED: dict[Row, PersistentTimes] = {
    (128, 128, 128, False, (1, 1), 2, 1): PersistentTimes(0.344, 0.03, 0.82),
    (128, 128, 128, False, (1, 1), 2, 2): PersistentTimes(0.391, 0.02, 0.82),
    (128, 128, 128, True, (1, 1), 2, 1): PersistentTimes(0.328, 0.50, 0.82),
    (128, 128, 128, True, (1, 2), 2, 1): PersistentTimes(0.348, 0.35, 1.40),
    (128, 128, 128, True, (2, 1), 2, 1): PersistentTimes(0.341, 0.49, 0.96),
    (128, 128, 256, False, (1, 1), 2, 1): PersistentTimes(0.667, 0.18, 0.95),
    (128, 192, 128, False, (1, 1), 2, 1): PersistentTimes(0.499, 0.30, 1.90),
    (128, 192, 128, True, (1, 1), 1, 1): PersistentTimes(0.485, 0.74, 1.87),
    (128, 192, 128, True, (1, 1), 2, 1): PersistentTimes(0.492, 0.61, 1.27),
    (128, 192, 128, True, (2, 1), 2, 1): PersistentTimes(0.507, 0.79, 1.38),
    (128, 256, 128, False, (1, 1), 2, 1): PersistentTimes(0.682, 0.02, 1.64),
    (128, 256, 128, False, (2, 1), 2, 1): PersistentTimes(0.699, 0.02, 1.64),
    (128, 64, 128, True, (1, 2), 1, 1): PersistentTimes(0.210, 0.60, 0.75),
    (192, 128, 128, True, (1, 2), 2, 1): PersistentTimes(0.507, 0.79, 1.38),
    (192, 64, 128, True, (1, 2), 1, 1): PersistentTimes(0.340, 0.40, 0.80),
    (256, 128, 128, False, (1, 1), 2, 1): PersistentTimes(0.692, 0.02, 1.64),
    (64, 128, 128, False, (1, 1), 1, 2): PersistentTimes(0.269, 0.24, 0.41),
    (64, 128, 128, False, (1, 1), 1, 4): PersistentTimes(0.260, 3.75, 1.25),
    (64, 128, 128, True, (1, 1), 2, 1): PersistentTimes(0.178, 0.24, 0.41),
    (64, 128, 128, True, (1, 1), 2, 2): PersistentTimes(0.241, 0.79, 0.41),
    (64, 128, 128, True, (1, 2), 2, 1): PersistentTimes(0.261, 0.43, 0.58),
    (64, 128, 128, True, (2, 1), 2, 1): PersistentTimes(0.196, 0.71, 0.94),
    (64, 128, 256, False, (1, 1), 1, 1): PersistentTimes(0.374, 0.11, 0.60),
    (64, 128, 256, False, (1, 1), 1, 2): PersistentTimes(0.540, 0.17, 0.41),
    (64, 128, 256, True, (1, 1), 2, 1): PersistentTimes(0.381, 0.30, 0.41),
    (64, 128, 256, True, (2, 1), 2, 1): PersistentTimes(0.446, 0.34, 0.78),
    (64, 192, 128, True, (2, 1), 2, 1): PersistentTimes(0.310, 0.40, 0.70),
    (64, 256, 128, False, (1, 1), 2, 1): PersistentTimes(0.366, 0.02, 0.82),
    (64, 256, 128, True, (1, 1), 2, 1): PersistentTimes(0.360, 0.43, 0.82),
    (64, 256, 128, True, (2, 1), 2, 1): PersistentTimes(0.390, 0.50, 0.90),
    (64, 64, 128, True, (1, 1), 1, 1): PersistentTimes(0.097, 0.30, 0.20),
    (64, 64, 128, True, (1, 1), 1, 2): PersistentTimes(0.101, 1.05, 0.49),
    (64, 64, 256, True, (1, 1), 1, 1): PersistentTimes(0.287, 0.16, 0.20),
    (64, 64, 256, True, (1, 1), 1, 2): PersistentTimes(0.186, 0.24, 0.63),
    (64, 64, 512, True, (1, 1), 1, 1): PersistentTimes(0.375, 0.22, 0.20),
}
# fmt: on
# 3000^3, with rows of 6000 bytes: 48 KB a microsecond to each of 132 SMs in every configuration; 1000^3, 64 CTAs: 77.
COPIES = Copies(sm_bytes_per_us=112e3, chip_bytes_per_us=14.5e6, shifted_sm=1.43, shifted_chip=2.3)
# Groups of 1 beside groups of 8 at 8192 x 8192 x 512: two outputs 5 % faster, two outputs and C 3.4, bias and relu 1.1.
TRAFFIC = Traffic(4.2, 3.0, 1.0, COPIES, launch_us=1.1, sustained_per_us=7.15e8, in_rows=0.75)
# Three stages of 128 bytes: 1488 us instead of 1391 at 8192 x 14336 x 4096 with C and two outputs.
_SHALLOW, _SHALLOW_BYTES = 1.07, 512
_UNBUFFERED = 1.4
"""An epilogue that cannot load a piece's operands while it works on the one before: 172 us instead of 157 at 8192 x
8192 x 512."""
# Measured at 8192^3 in float8, whose sums are promoted after each 128 positions of K: by tiles of 128 x 192 and larger,
# smaller ones, and what ping-pong ones (which were not among the best dozen) take at least.
_PROMOTED, _PROMOTED_SMALL, _PROMOTED_PINGPONG = 1.2, 1.3, 1.5
_SMALL_AREA = 128 * 128
_USUAL_GROUP, _USUAL_AT_ONCE = 8, 1
_OTHER_GROUPS = 1.002
"""Where nothing else tells groups apart, those of 8, but 1 where all tiles are worked on at once and operands are
little: 1 % faster at 768^3, 1000^3 and 1024^3. Beyond that, CTAs that read the same tile of B must be neighbours:
groups of 1 cost 1 to 4 % at 512 x 512 x 8192, 10 to 17 at 128 x 4096 x 4096, 15 at 256 x 8192 x 8192, 50 at 384 x 2048
x 8192."""
_LITTLE_BYTES = 8e6
_FLOPS_PER_CLOCK = 4096.0
"""Of one SM, with 16-bit operands and wgmma, as specified; a K tile of 128 bytes takes as long with 8 bits."""
_CLOCK_GHZ = 1.7
_EFFICIENCY = 0.7
_UNKNOWN_SLOWER = 1.05
"""So that a configuration that was measured is preferred."""


def estimate_us(
    config: Sm90Config, group: int, args: GemmArguments, target: TargetSm | None, copied: tuple[bool, bool]
) -> float | None:
    """Predicted microseconds of a run, without the copies of A and B that it may read; None without a target."""
    if target is None:
        return None
    work, ours = work_of(args, copied), how(config, group)
    tiles, slots = tiles_and_slots(work, ours, target)
    at_once = tiles <= slots and work.operand_bytes <= _LITTLE_BYTES
    usual = _USUAL_AT_ONCE if at_once else _USUAL_GROUP
    return persistent_us(work, ours, target) * (1.0 if group == usual else _OTHER_GROUPS)


def how(config: Sm90Config, group: int) -> Persistent:
    """How a configuration works on a problem."""
    overlap = Overlap.TURNS if config.pingpong else Overlap.EXPOSED
    tile = (config.tile_m, config.tile_n, config.tile_k)
    times = times_of(config)
    return Persistent(*tile, config.cluster, group, overlap, times, TRAFFIC, config.split, config.cluster_n)


def row_of(config: Sm90Config) -> Row:
    """A configuration's key in the table."""
    k_bytes = config.tile_k * config.element_bytes
    cluster = (config.cluster, config.cluster_n)
    return (config.tile_m, config.tile_n, k_bytes, config.pingpong, cluster, config.depth, config.split)


@functools.lru_cache(maxsize=512)
def times_of(config: Sm90Config) -> PersistentTimes:
    """What a configuration takes: its row, slower where sums are promoted."""
    row = adjusted(_row(config), row_of(config), config.stages, config.tail.load_bytes > 0)
    if config.part is None:
        return row
    small = config.tile_m * config.tile_n <= _SMALL_AREA
    slower = _PROMOTED_PINGPONG if config.pingpong else _PROMOTED_SMALL if small else _PROMOTED
    return row._replace(step_us=row.step_us * slower)


def adjusted(times: PersistentTimes, row: Row, stages: int, loads: bool) -> PersistentTimes:
    """A row's times with so many stages, and whether the epilogue loads full tensors."""
    k_bytes, depth = row[2], row[5]
    step_us = times.step_us * (_SHALLOW if stages * k_bytes < _SHALLOW_BYTES else 1.0)
    epilogue_us = times.epilogue_us * (_UNBUFFERED if loads and depth == 1 else 1.0)
    return times._replace(step_us=step_us, epilogue_us=epilogue_us)


def _row(config: Sm90Config) -> PersistentTimes:
    """A configuration's row; else that of the most similar one, its K tile scaled; else the tensor cores' rate."""
    own = row_of(config)
    found = MEASURED.get(own)
    if found is not None:
        return found
    tile_m, tile_n, k_bytes, pingpong, cluster, depth, split = own
    parts, area = k_bytes / 128, tile_m * tile_n
    for row in (
        (tile_m, tile_n, k_bytes, pingpong, cluster[::-1], depth, split),
        (tile_m, tile_n, 128, pingpong, cluster, 2, split),
        (tile_m, tile_n, 128, pingpong, (2, 1) if max(cluster) > 1 else (1, 1), 2, split),
        (tile_m, tile_n, 128, pingpong, (1, 1), 2, 1),
    ):
        found = MEASURED.get(row)
        if found is not None:
            scale = _UNKNOWN_SLOWER * (parts if row[2] != k_bytes else 1)
            return found._replace(step_us=found.step_us * scale)
    step = 2.0 * area * 64 / (_FLOPS_PER_CLOCK * _EFFICIENCY * 1000 * _CLOCK_GHZ) * _UNKNOWN_SLOWER
    return PersistentTimes(step * parts, 0.5, area / 16384 + 0.2)
