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
    Work,
    cache_bytes,
    persistent_us,
    tiles_and_slots,
    work_of,
)
from epifuse_cutedsl.configs.sm90 import Sm90Config

Row = tuple[int, int, int, bool, tuple[int, int], int, int]
"""tile_m, tile_n, bytes of K in a tile, ping-pong, cluster along M and N, depth, split."""

# Fitted to 85 problems on H200s (bfloat16, B K-major, all operators of each list): 64 of bias and relu, from 1 x 4096 x
# 4096 to 8192 x 4096 x 14336, and 21 with gelu, two outputs, C or swiglu. What is fitted is what the first of the list
# loses against the fastest, where estimates within 1 % count as ties, and the logarithms of the times. A hidden
# epilogue shows in no time: its column is what fits best. 8-bit operands are multiplied twice as fast: a K tile of as
# many bytes takes as long, and the rows serve them as well.
# fmt: off
MEASURED: dict[Row, PersistentTimes] = {
    (128, 128, 128, False, (1, 1), 2, 1): PersistentTimes(0.289, 0.03, 4.18),
    (128, 128, 128, True, (1, 1), 2, 1): PersistentTimes(0.309, 0.59, 1.05),
    (128, 128, 128, True, (1, 2), 2, 1): PersistentTimes(0.351, 0.86, 0.82),
    (128, 128, 128, True, (2, 1), 2, 1): PersistentTimes(0.354, 0.87, 0.51),
    (128, 128, 256, False, (1, 1), 2, 1): PersistentTimes(0.805, 0.21, 0.92),
    (128, 192, 128, False, (1, 1), 2, 1): PersistentTimes(0.499, 0.30, 1.90),
    (128, 192, 128, True, (1, 1), 1, 1): PersistentTimes(0.439, 1.72, 2.15),
    (128, 192, 128, True, (1, 1), 2, 1): PersistentTimes(0.494, 0.06, 2.67),
    (128, 192, 128, True, (2, 1), 2, 1): PersistentTimes(0.539, 0.56, 3.24),
    (128, 256, 128, False, (1, 1), 2, 1): PersistentTimes(0.748, 0.05, 1.91),
    (128, 256, 128, False, (2, 1), 2, 1): PersistentTimes(0.732, 0.06, 2.22),
    (128, 64, 128, True, (1, 2), 1, 1): PersistentTimes(0.191, 1.81, 0.16),
    (192, 128, 128, True, (1, 2), 2, 1): PersistentTimes(0.496, 1.44, 2.04),
    (192, 64, 128, True, (1, 2), 1, 1): PersistentTimes(0.269, 1.51, 0.16),
    (256, 128, 128, False, (1, 1), 2, 1): PersistentTimes(0.734, 0.03, 2.03),
    (64, 128, 128, False, (1, 1), 1, 2): PersistentTimes(0.292, 0.14, 0.27),
    (64, 128, 128, False, (1, 1), 1, 4): PersistentTimes(0.339, 0.31, 0.19),
    (64, 128, 128, True, (1, 1), 2, 1): PersistentTimes(0.175, 0.08, 0.70),
    (64, 128, 128, True, (1, 1), 2, 2): PersistentTimes(0.322, 0.13, 0.10),
    (64, 128, 128, True, (1, 2), 2, 1): PersistentTimes(0.201, 0.59, 1.09),
    (64, 128, 128, True, (2, 1), 2, 1): PersistentTimes(0.171, 1.55, 0.10),
    (64, 128, 256, False, (1, 1), 1, 1): PersistentTimes(0.459, 0.25, 0.45),
    (64, 128, 256, False, (1, 1), 1, 2): PersistentTimes(0.714, 0.19, 0.81),
    (64, 128, 256, True, (1, 1), 2, 1): PersistentTimes(0.426, 0.22, 0.57),
    (64, 128, 256, True, (2, 1), 2, 1): PersistentTimes(0.458, 0.26, 1.41),
    (64, 192, 128, True, (2, 1), 2, 1): PersistentTimes(0.265, 1.19, 0.42),
    (64, 256, 128, False, (1, 1), 2, 1): PersistentTimes(0.418, 0.03, 0.59),
    (64, 256, 128, True, (1, 1), 2, 1): PersistentTimes(0.393, 0.33, 0.89),
    (64, 256, 128, True, (2, 1), 2, 1): PersistentTimes(0.391, 0.71, 0.83),
    (64, 64, 128, True, (1, 1), 1, 1): PersistentTimes(0.137, 0.32, 0.33),
    (64, 64, 128, True, (1, 1), 1, 2): PersistentTimes(0.145, 0.67, 0.85),
    (64, 64, 256, True, (1, 1), 1, 1): PersistentTimes(0.248, 0.06, 0.06),
    (64, 64, 256, True, (1, 1), 1, 2): PersistentTimes(0.134, 0.43, 1.49),
    (64, 64, 512, True, (1, 1), 1, 1): PersistentTimes(0.618, 0.16, 0.37),
}
# fmt: on
# 3000^3, with rows of 6000 bytes: 48 KB a microsecond to each of 132 SMs in every configuration; 1000^3, 64 CTAs: 77.
COPIES = Copies(sm_bytes_per_us=140e3, chip_bytes_per_us=14.5e6, shifted_sm=1.2, shifted_chip=1.6)
# Groups of 1 beside groups of 8 at 8192 x 8192 x 512: two outputs 3 to 5 % faster, two outputs and C 3.4, one output 1
# to 2 % faster or slower.
TRAFFIC = Traffic(5.0, 5.0, 1.0, COPIES, launch_us=0.8, sustained_per_us=7.3e8, in_rows=0.75)
# 8192 x 14336 x 4096 with C and two outputs: 1488 us with three stages of 128 bytes, 1435 with four and tiles of 128 x
# 128, 1373 with four and 128 x 192.
_SHALLOW, _SHALLOW_BYTES = 1.08, 512
_LOADING, _LOADING_AREA = 1.003, 128 * 128
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
_PAIR_AREA, _THIN_BYTES, _LONG_BYTES, _THIN_PAIRS = 64 * 128, 128, 16384, 1.2
"""Pairs of small tiles with K tiles of 128 bytes and long rows, where no operands of the epilogue take the room that
longer K tiles need: 2 to 4 % faster on some H200s than with K tiles of 256 bytes, 8 to 25 % slower on others (128 x
8192 x 8192 36.5 beside 37.7 us, or 42.7 beside 39.2; 256 x 4096 x 8192 29.9 beside 30.9, or 42.0 beside 33.9)."""
_STAGES, _FEW_STAGES = 4, 1.2
"""Fewer stages do not hide memory's latency: 46 us with three beside 38 with four, 128 x 8192 x 8192 with C."""
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
    tiles, slots = counted = tiles_and_slots(work, ours, target)
    at_once, little = tiles <= slots, work.operand_bytes <= _LITTLE_BYTES
    usual = _USUAL_AT_ONCE if at_once and little else _USUAL_GROUP
    found = persistent_us(work, ours, target, counted) * (1.0 if group == usual else _OTHER_GROUPS)
    streams = at_once and work.operand_bytes > cache_bytes(target.cc)
    return found * (_streaming(config, work) if streams else 1.0)


def _streaming(config: Sm90Config, work: Work) -> float:
    """How much slower a configuration is where each CTA has one tile and operands beyond the cache come from memory."""
    pair = max(config.cluster, config.cluster_n) > 1 and config.tile_m * config.tile_n <= _PAIR_AREA
    thin = config.tile_k * config.element_bytes <= _THIN_BYTES and not config.tail.load_bytes
    slower = _THIN_PAIRS if pair and thin and work.k * work.element_bytes >= _LONG_BYTES else 1.0
    return slower * (_FEW_STAGES if config.stages < _STAGES else 1.0)


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
    if loads and stages * k_bytes <= _SHALLOW_BYTES and row[0] * row[1] <= _LOADING_AREA:
        step_us *= _LOADING
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
