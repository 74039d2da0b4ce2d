# SPDX-License-Identifier: Apache-2.0
"""What the portable kernel's configurations take."""

from __future__ import annotations

import functools

from epifuse.arguments import GemmArguments
from epifuse.target import TargetSm
from epifuse_cutedsl.configs.model import WaveTimes, rates_of, waves_us, work_of
from epifuse_cutedsl.configs.sm80 import Sm80Config
from epifuse_cutedsl.tile.smem import limit_bytes

# Measured on an H200 (bfloat16, bias and relu, B K-major, 16 shapes from 512^3 to 8192 x 14336 x 4096), each row fitted
# to the logarithms of its times (root of mean square 0.07 to 0.2): by tile_m, tile_n, bytes of K in a tile, stages. A
# step of the tensor cores takes 32 bytes of K whatever the dtype, so the rows serve 8-bit and TF32 operands as well.
# What the table puts first was within 5 % of the best on every shape that was measured.
# fmt: off
MEASURED: dict[tuple[int, int, int, int], WaveTimes] = {
    (16, 64, 64, 6): WaveTimes(0.073, 0.159, 0.11, 0.14),
    (16, 64, 128, 8): WaveTimes(0.041, 0.215, 1.06, 0.38),
    (32, 64, 64, 6): WaveTimes(0.095, 0.141, 0.10, 0.24),
    (32, 64, 128, 8): WaveTimes(0.142, 0.199, 0.32, 1.00),
    (64, 64, 64, 6): WaveTimes(0.140, 0.171, 0.30, 0.30),
    (64, 64, 128, 4): WaveTimes(0.249, 0.280, 0.26, 0.37),
    (64, 128, 64, 6): WaveTimes(0.208, 0.247, 0.65, 0.65),
    (64, 128, 128, 3): WaveTimes(0.392, 0.458, 0.28, 0.43),
    (64, 128, 128, 4): WaveTimes(0.397, 0.128, 0.17, 0.87),
    (64, 256, 64, 5): WaveTimes(0.341, 0.130, 1.48, 0.74),
    (64, 256, 128, 4): WaveTimes(0.656, 0.307, 1.86, 0.40),
    (128, 64, 64, 6): WaveTimes(0.218, 0.084, 1.91, 0.05),
    (128, 64, 128, 3): WaveTimes(0.396, 0.477, 0.30, 0.41),
    (128, 64, 128, 4): WaveTimes(0.402, 0.409, 0.28, 0.78),
    (128, 128, 64, 6): WaveTimes(0.314, 0.297, 0.85, 1.14),
    (128, 128, 128, 3): WaveTimes(0.601, 0.173, 0.10, 1.22),
    (128, 128, 128, 4): WaveTimes(0.554, 0.626, 1.71, 0.49),
    (128, 256, 64, 6): WaveTimes(0.605, 0.356, 0.97, 2.60),
    (128, 256, 128, 4): WaveTimes(1.089, 0.271, 2.07, 1.58),
    (256, 128, 64, 6): WaveTimes(0.600, 0.557, 3.22, 0.45),
    (256, 128, 128, 4): WaveTimes(1.094, 0.506, 2.89, 0.73),
}
# fmt: on
_GROUP_PENALTY = {4: 1.0, 1: 1.005, 8: 1.01}
"""Groups of 4 were best or within 2 % on every shape; of 1 up to 7 % slower, of 8 up to 7 %."""
_HOPPER, _ON_HOPPER = 90, 1.2
"""There, runs of 20 microseconds and more take 1.0 to 1.3 times what the formula says, and the Hopper kernel was faster
on all of 137 problems, by 6 % at least (H200): its estimates must not lose against a portable one that is too low."""


def estimate_us(config: Sm80Config, group: int, args: GemmArguments, target: TargetSm | None) -> float | None:
    """Predicted microseconds of a run; None without a target."""
    if target is None:
        return None
    resident = resident_ctas(config, args.accumulator_type.bytes, target.cc)
    us = waves_us(work_of(args), config, times_of(config, target.cc), resident, target)
    return us * _GROUP_PENALTY.get(group, 1.02) * (_ON_HOPPER if target.cc == _HOPPER else 1.0)


@functools.lru_cache(maxsize=512)
def times_of(config: Sm80Config, cc: int) -> WaveTimes:
    """A configuration's row, scaled to the architecture; that of the nearest stage count where its own is absent."""
    here, there = rates_of(cc), rates_of(90)
    if not config.tensor:
        rate = here.f64 if config.kind == "f64" else here.f32
        efficiency = 0.75 if config.tile_m * config.tile_n >= 64 * 64 else 0.5
        cycles = 2.0 * config.tile_m * config.tile_n * config.tile_k / (rate * efficiency)
        return WaveTimes(cycles / (1000 * here.clock_ghz), 0.35, 1.0, 0.5)
    k_bytes = config.tile_k * config.element_bytes
    rows = [key for key in MEASURED if key[:3] == (config.tile_m, config.tile_n, k_bytes)]
    row = MEASURED[min(rows, key=lambda key: abs(key[3] - config.stages))]
    slower = there.half * there.clock_ghz / (here.half * here.clock_ghz)
    clock = there.clock_ghz / here.clock_ghz
    return WaveTimes(row.step_us * slower, row.latency_us * clock, row.tile_us * clock, row.each_us * clock)


@functools.lru_cache(maxsize=512)
def resident_ctas(config: Sm80Config, accumulator_bytes: int, cc: int) -> int:
    """CTAs that share an SM, by shared memory, registers and threads."""
    by_smem = (limit_bytes(cc) + 1024) // (config.smem_bytes(accumulator_bytes) + 1024)
    accumulators = config.tile_m * config.tile_n // config.threads
    registers = 255 if accumulators >= 96 else 168 if accumulators >= 64 else 128
    return max(1, min(by_smem, 65536 // (config.threads * registers), 2048 // config.threads))
