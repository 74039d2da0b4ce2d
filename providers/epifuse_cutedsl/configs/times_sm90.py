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
    (64, 48, 256, True, (1, 1), 2, 1): PersistentTimes(0.203, 0.59, 0.25),
    (64, 48, 256, True, (1, 1), 2, 2): PersistentTimes(0.281, 0.16, 0.82),
    (64, 64, 128, True, (1, 1), 1, 1): PersistentTimes(0.150, 1.53, 0.22),
    (64, 64, 128, True, (1, 1), 1, 2): PersistentTimes(0.145, 1.51, 0.07),
    (64, 64, 256, True, (1, 1), 1, 1): PersistentTimes(0.361, 0.03, 0.10),
    (64, 64, 256, True, (1, 1), 1, 2): PersistentTimes(0.048, 1.08, 0.82),
    (64, 64, 512, True, (1, 1), 1, 1): PersistentTimes(0.770, 0.25, 0.05),
    (64, 80, 256, True, (1, 1), 2, 2): PersistentTimes(0.425, 0.41, 0.24),
    (64, 80, 256, True, (2, 1), 2, 1): PersistentTimes(0.308, 1.61, 2.39),
    (64, 96, 256, True, (1, 1), 2, 1): PersistentTimes(0.386, 1.21, 0.15),
    (64, 112, 256, True, (1, 1), 2, 1): PersistentTimes(0.325, 0.27, 4.45),
    (64, 128, 128, False, (1, 1), 1, 2): PersistentTimes(0.378, 0.62, 0.14),
    (64, 128, 128, False, (1, 1), 1, 4): PersistentTimes(0.457, 12.50, 0.84),
    (64, 128, 128, True, (1, 1), 2, 1): PersistentTimes(0.290, 0.03, 0.30),
    (64, 128, 128, True, (1, 1), 2, 2): PersistentTimes(0.494, 1.20, 0.06),
    (64, 128, 128, True, (1, 2), 2, 1): PersistentTimes(0.253, 0.16, 1.35),
    (64, 128, 128, True, (2, 1), 2, 1): PersistentTimes(0.224, 0.63, 1.08),
    (64, 128, 256, False, (1, 1), 1, 1): PersistentTimes(0.580, 0.58, 0.17),
    (64, 128, 256, False, (1, 1), 1, 2): PersistentTimes(0.268, 0.73, 5.61),
    (64, 128, 256, True, (1, 1), 2, 1): PersistentTimes(0.573, 0.11, 0.58),
    (64, 128, 256, True, (2, 1), 2, 1): PersistentTimes(0.468, 0.03, 2.27),
    (64, 192, 128, True, (2, 1), 2, 1): PersistentTimes(0.286, 0.79, 1.76),
    (64, 256, 128, False, (1, 1), 2, 1): PersistentTimes(0.526, 0.06, 0.10),
    (64, 256, 128, True, (1, 1), 2, 1): PersistentTimes(0.516, 0.05, 0.18),
    (64, 256, 128, True, (2, 1), 2, 1): PersistentTimes(0.411, 0.14, 2.71),
    (128, 48, 128, True, (1, 1), 2, 1): PersistentTimes(0.199, 0.17, 0.36),
    (128, 64, 128, True, (1, 2), 1, 1): PersistentTimes(0.194, 1.45, 1.26),
    (128, 80, 128, True, (2, 1), 2, 1): PersistentTimes(0.256, 1.05, 2.91),
    (128, 112, 128, True, (1, 1), 2, 1): PersistentTimes(0.292, 2.09, 0.19),
    (128, 128, 128, False, (1, 1), 2, 1): PersistentTimes(0.378, 0.03, 1.22),
    (128, 128, 128, True, (1, 1), 2, 1): PersistentTimes(0.336, 0.63, 1.44),
    (128, 128, 128, True, (1, 2), 2, 1): PersistentTimes(0.391, 0.99, 0.55),
    (128, 128, 128, True, (2, 1), 2, 1): PersistentTimes(0.393, 0.12, 2.38),
    (128, 128, 256, False, (1, 1), 2, 1): PersistentTimes(0.760, 1.94, 0.08),
    (128, 144, 128, True, (1, 1), 2, 1): PersistentTimes(0.370, 0.69, 2.81),
    (128, 192, 128, False, (1, 1), 2, 1): PersistentTimes(0.499, 0.30, 1.90),
    (128, 192, 128, True, (1, 1), 1, 1): PersistentTimes(0.506, 0.72, 3.93),
    (128, 192, 128, True, (1, 1), 2, 1): PersistentTimes(0.525, 0.23, 3.00),
    (128, 192, 128, True, (2, 1), 2, 1): PersistentTimes(0.655, 0.64, 0.15),
    (128, 256, 128, False, (1, 1), 2, 1): PersistentTimes(0.830, 0.89, 0.92),
    (128, 256, 128, False, (2, 1), 2, 1): PersistentTimes(0.755, 2.28, 0.37),
    (192, 48, 128, True, (1, 1), 2, 1): PersistentTimes(0.074, 2.64, 0.10),
    (192, 64, 128, True, (1, 2), 1, 1): PersistentTimes(0.260, 1.76, 0.29),
    (192, 112, 128, True, (1, 1), 2, 1): PersistentTimes(0.432, 2.01, 0.54),
    (192, 128, 128, True, (1, 2), 2, 1): PersistentTimes(0.539, 0.49, 3.31),
    (256, 128, 128, False, (1, 1), 2, 1): PersistentTimes(0.776, 0.04, 2.27),
}
# Operands swapped, with an epilogue through staged pieces: tile along N, along M, and so on.
SWAPPED: dict[Row, PersistentTimes] = {
    (64, 16, 256, True, (1, 1), 1, 2): PersistentTimes(0.010, 1.60, 0.05),
    (64, 16, 512, True, (1, 1), 1, 1): PersistentTimes(0.325, 3.66, 0.05),
    (64, 32, 256, True, (1, 1), 1, 1): PersistentTimes(0.026, 4.38, 0.20),
    (64, 48, 256, True, (1, 1), 1, 1): PersistentTimes(0.175, 0.85, 1.33),
    (64, 80, 256, True, (2, 1), 1, 1): PersistentTimes(0.124, 0.29, 1.50),
    (64, 112, 256, True, (1, 1), 1, 1): PersistentTimes(0.013, 0.62, 0.07),
    (128, 48, 128, True, (1, 1), 1, 1): PersistentTimes(0.178, 0.42, 1.00),
    (128, 80, 128, True, (2, 1), 1, 1): PersistentTimes(0.070, 0.07, 3.85),
    (192, 48, 128, True, (1, 1), 1, 1): PersistentTimes(0.013, 0.03, 2.21),
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
_PAIR_AREA, _THIN_BYTES, _LONG_BYTES, _THIN_PAIRS = 64 * 128, 128, 8192, 1.2
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
    if config.swapped:
        work = work._replace(m=work.n, n=work.m, shifted=(work.shifted[1], work.shifted[0]))
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
    found = (SWAPPED if config.swapped else MEASURED).get(own)
    if found is not None:
        return found
    tile_m, tile_n, k_bytes, pingpong, cluster, depth, split = own
    parts, area = k_bytes / 128, tile_m * tile_n
    for row in (
        (tile_m, tile_n, k_bytes, pingpong, cluster, 2, split),
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
