# SPDX-License-Identifier: Apache-2.0
"""The portable kernel's time in closed form, to put the best configuration first.

An SM works on several CTAs at once. One K tile of one CTA takes ``step_us`` of the SM's time, and at least
``latency_us`` whoever else is there; a tile takes ``tile_us`` beside its main loop and ``each_us`` more of the SM for
each CTA. A wave of CTAs takes as long as its fullest SM; nothing is faster than memory. Nothing here changes a result.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from epifuse.arguments import GemmArguments
from epifuse.emulator import chips
from epifuse.target import TargetSm
from epifuse_cutedsl.configs.sm80 import Sm80Config
from epifuse_cutedsl.tile.smem import limit_bytes

_EMPTY_US = 1.0
"""A run that launches nothing."""
_LAUNCH_US = 2.0


@dataclass(frozen=True, slots=True)
class Times:
    """What one configuration takes on one SM, in microseconds (see above)."""

    step_us: float
    latency_us: float
    tile_us: float
    each_us: float


# Measured on an H200 (bfloat16, bias and relu, B K-major, 16 shapes from 512^3 to 8192 x 14336 x 4096), each row fitted
# to the logarithms of its times (root of mean square 0.07 to 0.2): by tile_m, tile_n, bytes of K in a tile, stages. A
# step of the tensor cores takes 32 bytes of K whatever the dtype, so the rows serve 8-bit and TF32 operands as well.
# What the table puts first was within 5 % of the best on every shape that was measured.
# fmt: off
MEASURED: dict[tuple[int, int, int, int], Times] = {
    (16, 64, 64, 6): Times(0.073, 0.159, 0.11, 0.14),
    (16, 64, 128, 8): Times(0.041, 0.215, 1.06, 0.38),
    (32, 64, 64, 6): Times(0.095, 0.141, 0.10, 0.24),
    (32, 64, 128, 8): Times(0.142, 0.199, 0.32, 1.00),
    (64, 64, 64, 6): Times(0.140, 0.171, 0.30, 0.30),
    (64, 64, 128, 4): Times(0.249, 0.280, 0.26, 0.37),
    (64, 128, 64, 6): Times(0.208, 0.247, 0.65, 0.65),
    (64, 128, 128, 3): Times(0.392, 0.458, 0.28, 0.43),
    (64, 128, 128, 4): Times(0.397, 0.128, 0.17, 0.87),
    (64, 256, 64, 5): Times(0.341, 0.130, 1.48, 0.74),
    (64, 256, 128, 4): Times(0.656, 0.307, 1.86, 0.40),
    (128, 64, 64, 6): Times(0.218, 0.084, 1.91, 0.05),
    (128, 64, 128, 3): Times(0.396, 0.477, 0.30, 0.41),
    (128, 64, 128, 4): Times(0.402, 0.409, 0.28, 0.78),
    (128, 128, 64, 6): Times(0.314, 0.297, 0.85, 1.14),
    (128, 128, 128, 3): Times(0.601, 0.173, 0.10, 1.22),
    (128, 128, 128, 4): Times(0.554, 0.626, 1.71, 0.49),
    (128, 256, 64, 6): Times(0.605, 0.356, 0.97, 2.60),
    (128, 256, 128, 4): Times(1.089, 0.271, 2.07, 1.58),
    (256, 128, 64, 6): Times(0.600, 0.557, 3.22, 0.45),
    (256, 128, 128, 4): Times(1.094, 0.506, 2.89, 0.73),
}
# fmt: on
_MEASURED_OPERATIONS = 3.0
_MEASURED_BYTES = 2.0
"""An element's operations and bytes in the epilogue that was measured."""
_GROUP_PENALTY = {4: 1.0, 1: 1.005, 8: 1.01}
"""Groups of 4 were best or within 2 % on every shape; of 1 up to 7 % slower, of 8 up to 7 %."""


@dataclass(frozen=True, slots=True)
class Rates:
    """What an SM of an architecture does: flops per clock with tensor cores (half), FMA in float32 and float64; the
    chip's memory in terabytes a second."""

    clock_ghz: float
    half: float
    f32: float
    f64: float
    terabytes_per_second: float


RATES: dict[int, Rates] = {
    80: Rates(1.41, 2048, 128, 64, 1.9),
    86: Rates(1.70, 1024, 256, 4, 0.9),
    89: Rates(2.40, 1024, 256, 4, 0.9),
    90: Rates(1.75, 2600, 256, 128, 4.2),
    100: Rates(1.85, 2048, 256, 128, 7.5),
    120: Rates(2.40, 1024, 256, 4, 1.7),
}
"""By compute capability; that of the newest one not newer stands for the rest. The row of 90 is what was measured with
``mma.sync``, the others are the specifications'."""


def rates_of(cc: int) -> Rates:
    """The row for a compute capability."""
    return RATES[max((known for known in RATES if known <= cc), default=80)]


@functools.lru_cache(maxsize=64)
def sm_count(target: TargetSm) -> int:
    """SMs of the chip of that target; those of an A100 where it is not known."""
    try:
        return chips.chip(str(target)).sm_count
    except ValueError:
        return 108


def estimate_us(config: Sm80Config, group: int, args: GemmArguments, target: TargetSm | None) -> float | None:
    """Predicted microseconds of a run; None without a target."""
    if target is None:
        return None
    m, n, k, batches = args.problem_size
    tiles = -(-m // config.tile_m) * -(-n // config.tile_n) * batches
    if not tiles:
        return _EMPTY_US
    times = times_of(config, target.cc)
    sms, resident = sm_count(target), resident_ctas(config, args.accumulator_type.bytes, target.cc)
    steps = -(-k // config.tile_k)
    each = times.each_us + _heavier_us(config, args, target.cc)

    def wave(ctas: int) -> float:
        return steps * max(times.latency_us, ctas * times.step_us) + times.tile_us + ctas * each

    full, rest = divmod(tiles, sms * resident)
    total = full * wave(resident) + (wave(-(-rest // sms)) if rest else 0.0)
    return (max(total, _memory_us(args, target.cc)) + _LAUNCH_US) * _GROUP_PENALTY.get(group, 1.02)


@functools.lru_cache(maxsize=512)
def times_of(config: Sm80Config, cc: int) -> Times:
    """A configuration's row, scaled to the architecture; that of the nearest stage count where its own is absent."""
    here, there = rates_of(cc), rates_of(90)
    if not config.tensor:
        rate = here.f64 if config.kind == "f64" else here.f32
        efficiency = 0.75 if config.tile_m * config.tile_n >= 64 * 64 else 0.5
        cycles = 2.0 * config.tile_m * config.tile_n * config.tile_k / (rate * efficiency)
        return Times(cycles / (1000 * here.clock_ghz), 0.35, 1.0, 0.5)
    k_bytes = config.tile_k * config.element_bytes
    rows = [key for key in MEASURED if key[:3] == (config.tile_m, config.tile_n, k_bytes)]
    row = MEASURED[min(rows, key=lambda key: abs(key[3] - config.stages))]
    slower = there.half * there.clock_ghz / (here.half * here.clock_ghz)
    clock = there.clock_ghz / here.clock_ghz
    return Times(row.step_us * slower, row.latency_us * clock, row.tile_us * clock, row.each_us * clock)


@functools.lru_cache(maxsize=512)
def resident_ctas(config: Sm80Config, accumulator_bytes: int, cc: int) -> int:
    """CTAs that share an SM, by shared memory, registers and threads."""
    by_smem = (limit_bytes(cc) + 1024) // (config.smem_bytes(accumulator_bytes) + 1024)
    accumulators = config.tile_m * config.tile_n // config.threads
    registers = 255 if accumulators >= 96 else 168 if accumulators >= 64 else 128
    return max(1, min(by_smem, 65536 // (config.threads * registers), 2048 // config.threads))


def _heavier_us(config: Sm80Config, args: GemmArguments, cc: int) -> float:
    """What a tile's epilogue takes beyond the one that was measured: issue slots, and bytes through the SM."""
    facts = args.plan.facts
    operations = facts.alu_operations + facts.fma_operations + 8.0 * facts.special_operations
    moved = facts.load_bytes + facts.store_bytes
    extra = max(0.0, operations - _MEASURED_OPERATIONS) / 128.0 + max(0.0, moved - _MEASURED_BYTES) / 32.0
    return config.tile_m * config.tile_n * extra / (1000 * rates_of(cc).clock_ghz)


def _memory_us(args: GemmArguments, cc: int) -> float:
    m, n, k, batches = args.problem_size
    size = args.A.traits.dtype.bytes
    facts = args.plan.facts
    moved = batches * ((m + n) * k * size + m * n * (facts.load_bytes + facts.store_bytes))
    return moved / (rates_of(cc).terabytes_per_second * 1e6)
