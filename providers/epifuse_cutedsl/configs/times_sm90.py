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
    grid,
    persistent_us,
    tiles_and_slots,
    work_of,
)
from epifuse_cutedsl.configs.sm90 import Sm90Config
from epifuse_cutedsl.configs.sm90_products import KINDS, PROMOTED_STEPS, product_of

Row = tuple[int, int, int, bool, tuple[int, int], int, int]
"""tile_m, tile_n, bytes of K in a tile, ping-pong, cluster along M and N, depth, split."""

# Fitted to 157 problems on up to six H200s (bfloat16, B K-major, the operators of each list that are likely): bias and
# relu, from 1 x 4096 x 4096 to 8192 x 4096 x 14336, half of them with few rows or columns, and 22 with gelu, two
# outputs, C or swiglu; and, less, to 22 with B along N. What is fitted is what the first of the list loses against the
# fastest, where estimates within 1 % count as ties, most of all on the problems of the two benchmark suites, and the
# logarithms of the times. An operator that nobody measured counted as slow where a row would have put it first. A
# hidden epilogue shows in no time: its column is what fits best.
# fmt: off
MEASURED: dict[Row, PersistentTimes] = {
    (64, 48, 256, True, (1, 1), 2, 1): PersistentTimes(0.282, 0.27, 2.51),
    (64, 48, 256, True, (1, 1), 2, 2): PersistentTimes(0.391, 0.05, 1.07),
    (64, 64, 128, True, (1, 1), 1, 1): PersistentTimes(0.178, 0.19, 0.16),
    (64, 64, 128, True, (1, 1), 1, 2): PersistentTimes(0.235, 0.03, 1.17),
    (64, 64, 256, True, (1, 1), 1, 1): PersistentTimes(0.229, 0.41, 0.19),
    (64, 64, 256, True, (1, 1), 1, 2): PersistentTimes(0.172, 0.52, 1.97),
    (64, 64, 512, True, (1, 1), 1, 1): PersistentTimes(0.748, 0.86, 0.10),
    (64, 80, 256, True, (1, 1), 2, 2): PersistentTimes(0.702, 0.09, 0.39),
    (64, 80, 256, True, (2, 1), 2, 1): PersistentTimes(0.261, 4.85, 0.06),
    (64, 96, 128, False, (1, 1), 2, 2): PersistentTimes(0.217, 0.20, 5.75),
    (64, 96, 256, True, (1, 1), 2, 1): PersistentTimes(0.259, 0.03, 2.11),
    (64, 112, 256, True, (1, 1), 2, 1): PersistentTimes(0.268, 1.96, 0.91),
    (64, 128, 128, False, (1, 1), 1, 2): PersistentTimes(0.135, 2.32, 0.87),
    (64, 128, 128, False, (1, 1), 1, 4): PersistentTimes(0.371, 101.49, 20.19),
    (64, 128, 128, True, (1, 1), 2, 1): PersistentTimes(0.246, 0.39, 0.56),
    (64, 128, 128, True, (1, 1), 2, 2): PersistentTimes(0.402, 0.37, 0.35),
    (64, 128, 128, True, (1, 2), 2, 1): PersistentTimes(0.195, 0.58, 2.24),
    (64, 128, 128, True, (2, 1), 2, 1): PersistentTimes(0.227, 0.43, 1.26),
    (64, 128, 256, False, (1, 1), 1, 1): PersistentTimes(0.518, 0.42, 1.18),
    (64, 128, 256, False, (1, 1), 1, 2): PersistentTimes(0.712, 0.03, 0.94),
    (64, 128, 256, True, (1, 1), 2, 1): PersistentTimes(0.502, 0.19, 0.92),
    (64, 128, 256, True, (2, 1), 2, 1): PersistentTimes(0.426, 1.00, 2.83),
    (64, 192, 128, True, (2, 1), 2, 1): PersistentTimes(0.294, 0.17, 3.01),
    (64, 256, 128, False, (1, 1), 2, 1): PersistentTimes(0.400, 0.03, 0.69),
    (64, 256, 128, True, (1, 1), 2, 1): PersistentTimes(0.396, 0.61, 0.20),
    (64, 256, 128, True, (2, 1), 2, 1): PersistentTimes(0.449, 0.08, 0.58),
    (128, 48, 128, False, (1, 1), 2, 2): PersistentTimes(0.186, 2.11, 0.10),
    (128, 48, 128, True, (1, 1), 2, 1): PersistentTimes(0.187, 0.88, 0.42),
    (128, 64, 128, False, (1, 1), 1, 2): PersistentTimes(0.139, 1.99, 1.15),
    (128, 64, 128, True, (1, 2), 1, 1): PersistentTimes(0.188, 4.64, 0.90),
    (128, 80, 128, False, (1, 1), 2, 2): PersistentTimes(0.234, 0.03, 5.94),
    (128, 80, 128, True, (2, 1), 2, 1): PersistentTimes(0.251, 0.06, 4.34),
    (128, 112, 128, True, (1, 1), 2, 1): PersistentTimes(0.322, 1.11, 0.10),
    (128, 128, 128, False, (1, 1), 2, 1): PersistentTimes(0.341, 0.78, 0.25),
    (128, 128, 128, True, (1, 1), 2, 1): PersistentTimes(0.339, 0.69, 0.67),
    (128, 128, 128, True, (1, 2), 2, 1): PersistentTimes(0.465, 0.06, 0.64),
    (128, 128, 128, True, (2, 1), 2, 1): PersistentTimes(0.292, 8.41, 0.33),
    (128, 128, 256, False, (1, 1), 2, 1): PersistentTimes(0.785, 0.34, 0.54),
    (128, 144, 128, True, (1, 1), 2, 1): PersistentTimes(0.374, 0.03, 5.70),
    (128, 192, 128, False, (1, 1), 2, 1): PersistentTimes(0.499, 0.30, 1.90),
    (128, 192, 128, True, (1, 1), 1, 1): PersistentTimes(0.404, 8.05, 0.05),
    (128, 192, 128, True, (1, 1), 2, 1): PersistentTimes(0.509, 0.67, 2.88),
    (128, 192, 128, True, (2, 1), 2, 1): PersistentTimes(0.577, 0.11, 3.39),
    (128, 256, 128, False, (1, 1), 2, 1): PersistentTimes(0.806, 0.33, 1.12),
    (128, 256, 128, False, (2, 1), 2, 1): PersistentTimes(0.737, 2.98, 0.08),
    (192, 48, 128, True, (1, 1), 2, 1): PersistentTimes(0.195, 4.37, 0.05),
    (192, 64, 128, True, (1, 2), 1, 1): PersistentTimes(0.314, 0.04, 3.56),
    (192, 112, 128, True, (1, 1), 2, 1): PersistentTimes(0.436, 1.97, 2.59),
    (192, 128, 128, True, (1, 2), 2, 1): PersistentTimes(0.552, 1.15, 1.45),
    (192, 192, 128, False, (1, 2), 2, 1): PersistentTimes(0.780, 0.18, 1.45),
    (256, 128, 128, False, (1, 1), 2, 1): PersistentTimes(0.765, 0.62, 1.03),
}
# Operands swapped, with an epilogue through staged pieces: tile along N, along M, and so on.
SWAPPED: dict[Row, PersistentTimes] = {
    (64, 16, 256, True, (1, 1), 1, 2): PersistentTimes(0.034, 0.27, 0.37),
    (64, 16, 512, True, (1, 1), 1, 1): PersistentTimes(0.295, 0.03, 0.05),
    (64, 32, 256, True, (1, 1), 1, 1): PersistentTimes(0.218, 0.03, 0.05),
    (64, 32, 256, True, (1, 1), 1, 2): PersistentTimes(0.210, 1.81, 1.03),
    (64, 48, 256, True, (1, 1), 1, 1): PersistentTimes(0.101, 2.07, 1.98),
    (64, 80, 256, True, (2, 1), 1, 1): PersistentTimes(0.168, 4.21, 0.18),
    (64, 96, 128, False, (1, 1), 1, 2): PersistentTimes(0.134, 3.42, 0.17),
    (64, 112, 256, True, (1, 1), 1, 1): PersistentTimes(0.437, 0.39, 0.09),
    (128, 48, 128, False, (1, 1), 1, 2): PersistentTimes(0.240, 0.04, 0.06),
    (128, 48, 128, True, (1, 1), 1, 1): PersistentTimes(0.113, 1.77, 2.10),
    (128, 80, 128, True, (2, 1), 1, 1): PersistentTimes(0.232, 0.04, 1.61),
    (192, 48, 128, True, (1, 1), 1, 1): PersistentTimes(0.206, 0.12, 6.06),
}
# Sums of 8-bit floats, promoted every 256 positions of K: 40 problems from 16 x 4096 x 4096 to 8192^3, on three H200s.
PROMOTED: dict[Row, PersistentTimes] = {
    (64, 48, 256, True, (1, 1), 2, 1): PersistentTimes(0.127, 2.58, 0.37),
    (64, 48, 256, True, (1, 1), 2, 2): PersistentTimes(0.104, 0.03, 2.74),
    (64, 64, 128, True, (1, 1), 1, 1): PersistentTimes(0.082, 0.03, 2.76),
    (64, 64, 128, True, (1, 1), 1, 2): PersistentTimes(0.323, 0.27, 0.06),
    (64, 64, 256, True, (1, 1), 1, 1): PersistentTimes(0.327, 0.84, 0.14),
    (64, 64, 256, True, (1, 1), 1, 2): PersistentTimes(0.140, 0.08, 4.31),
    (64, 64, 512, True, (1, 1), 1, 1): PersistentTimes(0.587, 0.20, 0.13),
    (64, 80, 256, True, (1, 1), 2, 2): PersistentTimes(0.178, 0.44, 3.35),
    (64, 80, 256, True, (2, 1), 2, 1): PersistentTimes(0.424, 0.14, 0.16),
    (64, 96, 128, False, (1, 1), 2, 2): PersistentTimes(0.231, 0.25, 1.43),
    (64, 96, 256, True, (1, 1), 2, 1): PersistentTimes(0.222, 0.66, 2.96),
    (64, 112, 256, True, (1, 1), 2, 1): PersistentTimes(0.467, 0.05, 0.16),
    (64, 128, 128, False, (1, 1), 1, 2): PersistentTimes(0.139, 5.71, 0.23),
    (64, 128, 128, True, (1, 1), 2, 1): PersistentTimes(0.247, 0.73, 0.19),
    (64, 128, 128, True, (1, 1), 2, 2): PersistentTimes(0.530, 0.09, 0.22),
    (64, 128, 128, True, (1, 2), 2, 1): PersistentTimes(0.163, 0.69, 4.48),
    (64, 128, 128, True, (2, 1), 2, 1): PersistentTimes(0.212, 0.08, 1.84),
    (64, 128, 256, False, (1, 1), 1, 1): PersistentTimes(0.395, 0.12, 0.11),
    (64, 128, 256, False, (1, 1), 1, 2): PersistentTimes(0.489, 1.58, 1.14),
    (64, 128, 256, True, (1, 1), 2, 1): PersistentTimes(0.432, 0.29, 0.56),
    (64, 128, 256, True, (2, 1), 2, 1): PersistentTimes(0.527, 0.18, 0.77),
    (64, 192, 128, True, (1, 1), 2, 1): PersistentTimes(0.261, 0.18, 3.24),
    (64, 192, 128, True, (2, 1), 2, 1): PersistentTimes(0.382, 0.09, 0.18),
    (64, 256, 128, False, (1, 1), 2, 1): PersistentTimes(0.384, 0.04, 1.00),
    (64, 256, 128, True, (1, 1), 2, 1): PersistentTimes(0.368, 1.45, 1.46),
    (64, 256, 128, True, (2, 1), 2, 1): PersistentTimes(0.467, 0.26, 2.52),
    (128, 48, 128, False, (1, 1), 2, 2): PersistentTimes(0.172, 0.16, 1.21),
    (128, 48, 128, True, (1, 1), 2, 1): PersistentTimes(0.268, 0.20, 0.95),
    (128, 64, 128, False, (1, 1), 1, 2): PersistentTimes(0.139, 1.81, 0.76),
    (128, 64, 128, True, (1, 2), 1, 1): PersistentTimes(0.367, 0.24, 0.06),
    (128, 80, 128, False, (1, 1), 2, 2): PersistentTimes(0.467, 0.08, 0.12),
    (128, 80, 128, True, (2, 1), 2, 1): PersistentTimes(0.323, 0.73, 0.08),
    (128, 112, 128, True, (1, 1), 2, 1): PersistentTimes(0.431, 0.63, 0.05),
    (128, 128, 128, False, (1, 1), 2, 1): PersistentTimes(0.311, 0.72, 0.06),
    (128, 128, 128, True, (1, 1), 2, 1): PersistentTimes(0.495, 0.03, 0.91),
    (128, 128, 128, True, (1, 2), 2, 1): PersistentTimes(0.408, 0.05, 1.23),
    (128, 128, 128, True, (2, 1), 2, 1): PersistentTimes(0.376, 0.77, 0.92),
    (128, 128, 256, False, (1, 1), 2, 1): PersistentTimes(0.656, 1.23, 0.08),
    (128, 192, 128, False, (1, 1), 2, 1): PersistentTimes(0.433, 0.14, 0.88),
    (128, 192, 128, False, (2, 1), 2, 1): PersistentTimes(0.497, 0.40, 0.89),
    (128, 256, 128, False, (1, 1), 2, 1): PersistentTimes(0.857, 0.03, 0.53),
    (128, 256, 128, False, (2, 1), 2, 1): PersistentTimes(0.853, 0.07, 0.29),
    (192, 48, 128, True, (1, 1), 2, 1): PersistentTimes(0.547, 0.97, 0.61),
    (192, 64, 128, True, (1, 2), 1, 1): PersistentTimes(0.275, 0.58, 5.29),
    (256, 128, 128, False, (1, 1), 2, 1): PersistentTimes(0.684, 0.12, 0.10),
}
# The same with operands swapped: 16 x 4096 x 4096 (4.3 us; 5.0 with K tiles of 256 bytes and two CTAs that share K).
PROMOTED_SWAPPED: dict[Row, PersistentTimes] = {
    (64, 16, 256, True, (1, 1), 1, 2): PersistentTimes(0.540, 0.20, 0.40),
    (64, 16, 512, True, (1, 1), 1, 1): PersistentTimes(0.362, 0.20, 0.05),
}
# fmt: on
# 3000^3, with rows of 6000 bytes: 48 KB a microsecond to each of 132 SMs in every configuration; 1000^3, 64 CTAs: 77.
COPIES = Copies(sm_bytes_per_us=310e3, chip_bytes_per_us=7.82e6, shifted_sm=1.2, shifted_chip=1.6, shared=0.23)
# Groups of 1 beside groups of 8 at 8192 x 8192 x 512: two outputs 3 to 5 % faster, two outputs and C 3.4, one output 1
# to 2 % faster or slower.
TRAFFIC = Traffic(4.7, 5.0, 1.0, COPIES, launch_us=0.03, sustained_per_us=7.3e8, in_rows=0.75, sm_bytes_per_us=38.9e3)
# 8192 x 14336 x 4096 with C and two outputs: 1488 us with three stages of 128 bytes, 1435 with four and tiles of 128 x
# 128, 1373 with four and 128 x 192.
_SHALLOW, _SHALLOW_BYTES = 1.08, 512
_LOADING, _LOADING_AREA = 1.003, 128 * 128
_UNBUFFERED = 1.4
"""An epilogue that cannot load a piece's operands while it works on the one before: 172 us instead of 157 at 8192 x
8192 x 512."""
_OFTEN, _PROMOTED, _PROMOTED_PINGPONG = 1.41, 1.70, 1.35
"""How much longer a K tile takes: promoted every 128 positions of K beside 256; and promoted at all, in configurations
that stand in ``MEASURED`` alone, by mode."""
_USUAL_GROUP, _OTHER_GROUPS, _FEW_COLUMNS = 8, 1.002, 2
"""Where nothing else tells groups apart, those of 8, but 1 where all tiles are worked on at once and those that read
the same of the longer operand are neighbours then: 1 to 7 % faster at 4096 x 200 x 4096 and 5120 x 200 x 5120; where
neither is much longer, only if operands are little: 1 % at 1000^3 and 1024^3; and with ping-pong where outputs are more
than the cache, operands less: 1 to 2 % at 8192 x 8192 x 512 and 6144 x 6144 x 128 on two H200s, on another one 1 %
slower. Else CTAs that read the same tile of B must be neighbours: groups of 1 cost 7 % at 512 x 1024 x 1024, 1 to 4 at
512 x 512 x 8192, 10 to 17 at 128 x 4096 x 4096, 15 at 256 x 8192 x 8192, 50 at 384 x 2048 x 8192."""
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
    often = config.part is not None and KINDS[product_of(args)].interval(args) == PROMOTED_STEPS
    work, ours = work_of(args, copied), how(config, group, often=often)
    if config.swapped:
        work = work._replace(m=work.n, n=work.m, shifted=(work.shifted[1], work.shifted[0]))
    tiles, slots = counted = tiles_and_slots(work, ours, target)
    at_once, little = tiles <= slots, work.operand_bytes <= _LITTLE_BYTES
    cached = work.operand_bytes <= cache_bytes(target.cc)
    in_rows = cached and config.pingpong and work.batches * work.m * work.n * work.stored_bytes > cache_bytes(target.cc)
    rows, columns = grid(work, ours)
    along_rows = at_once and (columns * _FEW_COLUMNS <= rows or (little and columns <= rows))
    usual = 1 if along_rows or in_rows else _USUAL_GROUP
    found = persistent_us(work, ours, target, counted) * (1.0 if group == usual else _OTHER_GROUPS)
    streams = at_once and not cached
    return found * (_streaming(config, work) if streams else 1.0)


def _streaming(config: Sm90Config, work: Work) -> float:
    """How much slower a configuration is where each CTA has one tile and operands beyond the cache come from memory."""
    pair = max(config.cluster, config.cluster_n) > 1 and config.tile_m * config.tile_n <= _PAIR_AREA
    thin = config.tile_k * config.element_bytes <= _THIN_BYTES and not config.tail.load_bytes
    slower = _THIN_PAIRS if pair and thin and work.k * work.element_bytes >= _LONG_BYTES else 1.0
    return slower * (_FEW_STAGES if config.stages < _STAGES else 1.0)


def how(config: Sm90Config, group: int, *, often: bool = False) -> Persistent:
    """How a configuration works on a problem; ``often``: sums are promoted every 128 positions of K."""
    overlap = Overlap.TURNS if config.pingpong else Overlap.EXPOSED
    tile, times = (config.tile_m, config.tile_n, config.tile_k), times_of(config)
    if often:
        times = times._replace(step_us=times.step_us * _OFTEN)
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
    if config.part is None or row_of(config) in _promoted(config):
        return row
    return row._replace(step_us=row.step_us * (_PROMOTED_PINGPONG if config.pingpong else _PROMOTED))


def _promoted(config: Sm90Config) -> dict[Row, PersistentTimes]:
    return PROMOTED_SWAPPED if config.swapped else PROMOTED


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
    if config.part is not None:
        found = _promoted(config).get(own, found)
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
