# SPDX-License-Identifier: Apache-2.0
"""A run's time in closed form, to put the best operator first. Nothing here changes a result.

One formula for each way in which CTAs share the tiles: ``waves_us`` where each tile has a CTA, ``persistent_us``
where each SM has one. What a configuration takes stands in a table per architecture (``times_sm80``, ``times_sm90``),
one row of microseconds each; what a chip does, in ``RATES``.
"""

from __future__ import annotations

import enum
import functools
import math
from typing import Any

from epifuse.arguments import GemmArguments
from epifuse.emulator import chips
from epifuse.records import NamedTuple
from epifuse.runtime.tensors import Traits
from epifuse.target import TargetSm

EMPTY_US = 1.0
"""A run that launches nothing."""
LAUNCH_US = 2.0
LINE_BYTES = 128
"""Of the second-level cache: a row of a copy's box that begins within a line takes two."""
_LANES = 128.0
"""Operations of float32 that an SM issues in a clock."""
_SPECIAL_OPERATIONS = 8.0
"""What a special function (exponential, reciprocal) takes beside an addition."""
_SM_BYTES_PER_CLOCK, _PARTS_BYTES_PER_CLOCK = 20.0, 60.0
"""What one SM moves of an epilogue's full tensors, and of other CTAs' accumulators."""
_ACCUMULATOR_BYTES = 4
_THROTTLED = 8.0
"""Exponent with which the SMs' time and that which power allows add up."""
_SAME_CACHE = 2.6
"""That for what comes from memory and what SMs copy from the cache meanwhile: 128 x 8192 x 8192 takes 36 us with pairs
that share B, 44 without."""
_KEPT = (0.7, 0.75)
"""Of the second-level cache: bytes that it keeps all from run to run, and those of which it keeps none. (34 megabytes
with 64 CTAs, 73 KB a microsecond to each; 38 with 72 or 96, 33 KB, as from memory.)"""
MEASURED_OPERATIONS = 3.0
MEASURED_BYTES = 2.0
"""An element's operations and bytes in the epilogue with which all tables were measured: bias and relu, 16 bits out."""


class Rates(NamedTuple):
    """What an SM of an architecture does: flops per clock with tensor cores (half), FMA in float32 and float64; the
    chip's memory in terabytes a second and its second-level cache in megabytes."""

    clock_ghz: float
    half: float
    f32: float
    f64: float
    terabytes_per_second: float
    cache_megabytes: float = 40.0


RATES: dict[int, Rates] = {
    80: Rates(1.41, 2048, 128, 64, 1.9),
    86: Rates(1.70, 1024, 256, 4, 0.9, 6),
    89: Rates(2.40, 1024, 256, 4, 0.9, 72),
    90: Rates(1.75, 2600, 256, 128, 4.2, 50),
    100: Rates(1.85, 2048, 256, 128, 7.5, 126),
    120: Rates(2.40, 1024, 256, 4, 1.7, 96),
}
"""By compute capability; that of the newest one not newer stands for the rest. ``half`` is what ``mma.sync`` does, in
the row of 90 as measured, else as specified: kernels with other instructions have it in their own tables."""


@functools.lru_cache(maxsize=64)
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


class Work(NamedTuple):
    """What a run has to do, whoever does it. Operations and bytes are those of one element of the accumulator; what is
    moved are an epilogue's full tensors."""

    m: int
    n: int
    k: int
    batches: int
    element_bytes: int
    operations: float
    moved_bytes: float
    shifted: tuple[bool, bool] = (False, False)
    """Whether rows of A, and of B, begin elsewhere than at lines of 128 bytes."""
    stored_bytes: float = 0.0
    """Those of the moved bytes that are written, where outputs are contiguous along rows."""

    @property
    def memory_bytes(self) -> float:
        """What must come from memory and go there, each byte once."""
        return self.operand_bytes + self.batches * self.m * self.n * self.moved_bytes

    @property
    def operand_bytes(self) -> float:
        """A and B."""
        return float(self.batches * (self.m + self.n) * self.k * self.element_bytes)

    def heavier_us(self, tile_m: int, tile_n: int, cc: int) -> float:
        """What a tile's epilogue takes beyond the one that was measured: issue slots, and bytes through the SM."""
        extra = max(0.0, self.operations - MEASURED_OPERATIONS) / _LANES
        extra += max(0.0, self.moved_bytes - MEASURED_BYTES) / _SM_BYTES_PER_CLOCK
        return tile_m * tile_n * extra / (1000 * rates_of(cc).clock_ghz)


def work_of(args: GemmArguments, copied: tuple[bool, bool] = (False, False)) -> Work:
    """The work of arguments, kept with them: it is asked for every configuration.

    ``copied``: whether the kernel reads copies of A, and of B, whose rows begin at lines.
    """
    key = (Work, copied)
    found: Work | None = args.memo.get(key)
    if found is None:
        facts = args.plan.facts
        operations = facts.alu_operations + facts.fma_operations + _SPECIAL_OPERATIONS * facts.special_operations
        moved = facts.load_bytes + facts.store_bytes
        a, b = copied
        shifted = (not a and _is_shifted(args.A.traits), not b and _is_shifted(args.B.traits))
        rows = all(out.shape[-1:].numel() == 1 or out.stride(-1) == 1 for out in args.outputs)
        stored = facts.store_bytes if rows else 0.0
        found = Work(*args.problem_size, args.A.traits.dtype.bytes, operations, moved, shifted, stored)
        args.memo[key] = found
    return found


def _is_shifted(traits: Traits) -> bool:
    """Whether rows of an operand, along the axis of stride 1, are apart by no multiple of a line."""
    strides = [s for s, extent in zip(traits.strides[-2:], traits.shape[-2:], strict=True) if s != 1 and extent > 1]
    return any(stride * traits.dtype.bytes % LINE_BYTES for stride in strides)


# --- one CTA for each tile --------------------------------------------------------------------------------------------


class WaveTimes(NamedTuple):
    """What one configuration takes on one SM that works on several CTAs at once, in microseconds.

    One K tile of one CTA takes ``step_us`` of the SM's time, and at least ``latency_us`` whoever else is there; a tile
    takes ``tile_us`` beside its main loop and ``each_us`` more of the SM for each CTA.
    """

    step_us: float
    latency_us: float
    tile_us: float
    each_us: float


def waves_us(work: Work, config: Any, times: WaveTimes, resident: int, target: TargetSm) -> float:
    """A wave of CTAs takes as long as its fullest SM; nothing is faster than memory. ``resident`` CTAs share an SM."""
    tiles = -(-work.m // config.tile_m) * -(-work.n // config.tile_n) * work.batches
    if not tiles:
        return EMPTY_US
    sms, steps = sm_count(target), -(-work.k // config.tile_k)
    each = times.each_us + work.heavier_us(config.tile_m, config.tile_n, target.cc)

    def wave(ctas: int) -> float:
        return steps * max(times.latency_us, ctas * times.step_us) + times.tile_us + ctas * each

    full, rest = divmod(tiles, sms * resident)
    total = full * wave(resident) + (wave(-(-rest // sms)) if rest else 0.0)
    memory = work.memory_bytes / (rates_of(target.cc).terabytes_per_second * 1e6)
    return max(total, memory) + LAUNCH_US


# --- persistent CTAs --------------------------------------------------------------------------------------------------


class Overlap(enum.Enum):
    """What runs beside a tile's epilogue."""

    EXPOSED = "nothing: the same warps multiply and run epilogues"
    TURNS = "the other warpgroup's main loop"
    BESIDE = "the next tile's main loop: other warps run epilogues"


class PersistentTimes(NamedTuple):
    """What one configuration takes on one SM that works on one tile after the other, in microseconds: a K tile, a tile
    beside that, and its epilogue."""

    step_us: float
    tile_us: float
    epilogue_us: float


Pair = tuple[float, float]
"""Of A and of B, or along M and along N."""


class Copies(NamedTuple):
    """How fast the second-level cache feeds the SMs: bytes a microsecond to one, and to all together; what a byte of
    rows that do not begin at a line counts for either; and the power of the number of clusters that read the same bytes
    at a time by which such bytes count less for all together (64 x 128 tiles, K shared by two: 9.9 us at 4096 x 128 x
    4096, where 64 clusters read the same columns of B, 12.6 at 128 x 4096 x 4096, where two do)."""

    sm_bytes_per_us: float
    chip_bytes_per_us: float
    shifted_sm: float
    shifted_chip: float
    shared: float = 0.0

    def us(self, size: Pair, shifted: tuple[bool, bool], readers: Pair, ctas: int) -> float:
        """What a K tile's copies take while so many CTAs make theirs; of A and of B: bytes of a CTA, whether their rows
        begin within lines, and how many clusters read the same ones at a time."""
        (a_bytes, b_bytes), (a, b) = size, shifted
        one = a_bytes * (self.shifted_sm if a else 1) + b_bytes * (self.shifted_sm if b else 1)
        a_bytes *= (self.shifted_chip if a else 1) / readers[0] ** self.shared
        b_bytes *= (self.shifted_chip if b else 1) / readers[1] ** self.shared
        return max(one / self.sm_bytes_per_us, (a_bytes + b_bytes) * ctas / self.chip_bytes_per_us)


class Traffic(NamedTuple):
    """How memory slows a persistent kernel down: ``terabytes_per_second`` it gets, the exponent with which its time and
    the SMs' add up (1: one after the other; large: side by side), what a byte that is read again counts beside one that
    is read once; how fast copies from the cache are, where that is known; a launch; and how many operations of 16-bit
    products, those beyond the problem's edges too, the chip's power allows in a microsecond for long. ``in_rows`` is
    what a written byte counts where a group is one row of tiles: rows of an output are then written from end to end.
    ``sm_bytes_per_us`` is what one SM gets from memory at most."""

    terabytes_per_second: float
    exponent: float
    again: float = 1.0
    copies: Copies | None = None
    launch_us: float = LAUNCH_US
    sustained_per_us: float = math.inf
    in_rows: float = 1.0
    sm_bytes_per_us: float = math.inf


class Persistent(NamedTuple):
    """How a configuration works on a problem: a CTA's tile, ``cluster_m`` CTAs along M that take tiles together, and so
    many of those along M before the next along N; ``split`` CTAs have a part of a tile's K each, and one adds them."""

    tile_m: int
    tile_n: int
    tile_k: int
    cluster_m: int
    group: int
    overlap: Overlap
    times: PersistentTimes
    traffic: Traffic
    split: int = 1
    cluster_n: int = 1
    """CTAs along N that take tiles together with those along M, and share A's as those share B's."""


def persistent_us(work: Work, how: Persistent, target: TargetSm, counted: tuple[int, int] | None = None) -> float:
    """The SM with most tiles decides. ``counted``: ``tiles_and_slots``, where the caller has asked already."""
    tiles, slots = counted or tiles_and_slots(work, how, target)
    if not tiles:
        return EMPTY_US
    running = min(tiles, slots)
    at_once, ctas = _at_once(work, how, running), running * how.cluster_m * how.cluster_n * how.split
    steps, copied = -(-work.k // (how.tile_k * how.split)), _copied_us(work, how, at_once, ctas)
    main = steps * max(how.times.step_us, copied) + how.times.tile_us
    epilogue = how.times.epilogue_us + work.heavier_us(how.tile_m, how.tile_n, target.cc)
    parts = (how.split - 1) * how.tile_m * how.tile_n * _ACCUMULATOR_BYTES
    epilogue += parts / (_PARTS_BYTES_PER_CLOCK * 1000 * rates_of(target.cc).clock_ghz)
    rounds = -(-tiles // slots)
    if how.overlap is Overlap.EXPOSED:
        busy = rounds * (main + epilogue)
    elif how.overlap is Overlap.TURNS:
        busy = rounds * (main + max(0.0, epilogue - main) / 2) + epilogue
    else:
        busy = rounds * max(main, epilogue) + epilogue
    again = work.batches * _refetched_bytes(work, how, at_once, running, target.cc)
    moved = work.memory_bytes + how.traffic.again * again
    if how.group == 1:
        stored = work.batches * work.m * work.n * work.stored_bytes
        beyond = min(1.0, stored / cache_bytes(target.cc))  # what the cache takes is written from it, in no order
        moved -= (1 - how.traffic.in_rows) * stored * beyond
    rate = min(how.traffic.terabytes_per_second * 1e6, how.traffic.sm_bytes_per_us * ctas)
    memory = moved * _cold(work, target.cc) / rate
    memory = _beside(_SAME_CACHE, memory, min(memory, rounds * steps * copied))
    powered = _beside(_THROTTLED, busy, _sustained_us(work, how, tiles))
    return _beside(how.traffic.exponent, powered, memory) + how.traffic.launch_us


def tiles_and_slots(work: Work, how: Persistent, target: TargetSm) -> tuple[int, int]:
    """How many tiles (or clusters' tiles) there are, and how many are worked on at once at most."""
    tiles_m, tiles_n = grid(work, how)
    slots = max(1, sm_count(target) // (how.cluster_m * how.cluster_n * how.split))
    return tiles_m * tiles_n * work.batches, slots


def grid(work: Work, how: Persistent) -> tuple[int, int]:
    """Tiles (or clusters' tiles) along M and N, of one batch."""
    return -(-work.m // (how.tile_m * how.cluster_m)), -(-work.n // (how.tile_n * how.cluster_n))


def _cold(work: Work, cc: int) -> float:
    """The share of a run's bytes that come from memory when runs follow one another on the same tensors: none where the
    second-level cache keeps them all (4096 x 4096 halves, 34 of 50 megabytes), all where they are as large as it."""
    least, most = _KEPT
    return min(1.0, max(0.0, (work.memory_bytes / cache_bytes(cc) - least) / (most - least)))


def _beside(exponent: float, one: float, other: float) -> float:
    """Times that add up with an exponent (1: one after the other; large: side by side)."""
    return float((one**exponent + other**exponent) ** (1 / exponent))


def _sustained_us(work: Work, how: Persistent, tiles: int) -> float:
    """What the products of all tiles take where power is what limits them."""
    operations = 2.0 * tiles * how.tile_m * how.tile_n * how.cluster_m * how.cluster_n * work.k
    return operations * work.element_bytes / (2 * how.traffic.sustained_per_us)


def _copied_us(work: Work, how: Persistent, at_once: Pair, ctas: int) -> float:
    """What the copies of a K tile take, where that is known, while so many CTAs work on ``at_once`` tiles. CTAs of a
    cluster share them."""
    if how.traffic.copies is None:
        return 0.0
    row_bytes, (high, wide) = how.tile_k * work.element_bytes, at_once
    a_bytes = min(how.tile_m, work.m) * row_bytes / how.cluster_n
    b_bytes = min(how.tile_n, work.n) * row_bytes / how.cluster_m
    readers = (max(1.0, wide), max(1.0, high))
    return how.traffic.copies.us((a_bytes, b_bytes), work.shifted, readers, ctas)


def _at_once(work: Work, how: Persistent, slots: int) -> Pair:
    """How many tiles (or clusters' tiles) below and beside one another are worked on at a time."""
    rows, columns = grid(work, how)
    high = float(min(how.group, rows))
    wide = slots / high
    return (min(float(rows), high * wide / columns), float(columns)) if wide > columns else (high, wide)


def _refetched_bytes(work: Work, how: Persistent, at_once: Pair, slots: int, cc: int) -> float:
    """Bytes of A and B that one batch reads from memory again: tiles that are worked on at a time share rows and
    columns, and the second-level cache keeps a part of what others read before: nearly all where operands fit well, as
    the square says (8192 x 8192 x 512, 17 of 50 megabytes: groups of 1 ask for twice as much, and lose nothing)."""
    (rows, columns), (high, wide) = grid(work, how), at_once
    wave = (high * how.tile_m * how.cluster_m + wide * how.tile_n * how.cluster_n) * work.k * work.element_bytes
    once = (work.m + work.n) * work.k * work.element_bytes
    again = max(0.0, wave * rows * columns / slots - once)
    return again * min(1.0, once / cache_bytes(cc)) ** 2


def cache_bytes(cc: int) -> float:
    """The second-level cache of a compute capability's chip."""
    return 1e6 * rates_of(cc).cache_megabytes
