# SPDX-License-Identifier: Apache-2.0
"""Descriptors, mbarrier counts and transaction bytes: as computed, and beside NVIDIA's operator of the same tile.

Both kernels run in the emulator, which records what ``tcgen05.mma`` is given and what mbarriers are told.
"""

import itertools
from collections import Counter
from dataclasses import dataclass, field

import pytest
import torch

pytest.importorskip("cutlass")

import epifuse
from epifuse.emulator.barriers import Mbarrier
from epifuse.emulator.isa import descriptors, tcgen05_mma
from epifuse_cutedsl import emulate
from epifuse_cutedsl.kernels.ptx import tcgen05
from epifuse_cutedsl.tile.operand import ATOM_BYTES, OperandTile

SATURATE = 1 << 3
"""In an instruction descriptor: integer sums stop at the ends of int32, where others wrap around."""
LEADING = 0x3FFF << 16
"""In a matrix descriptor: the leading offset. It means nothing to a matrix of one box."""


def swizzled(address):
    return address ^ ((address >> 7 & 7) << 4)


def copied_to(tile, position, k):
    """Where a tensor copy puts element (position, k): rows of 128 bytes, one box behind the other."""
    if tile.k_major:
        box, place = divmod(k * tile.element_bytes, 128)
        return swizzled(box * tile.box_bytes + position * 128 + place)
    inner = position % tile.row_elements * tile.element_bytes
    return swizzled(position // tile.row_elements * tile.box_bytes + k * 128 + inner)


def read_by(tile, bits, position, k):
    """Where tcgen05.mma looks for element (position, k) of one instruction's matrix whose descriptor is ``bits``.

    PTX ISA, canonical layouts with 128-byte swizzle: atoms of 8 rows of 128 bytes, the stride offset from one to the
    next; MN-major, the leading offset from 128 bytes of M or N to the next.
    """
    start, leading, stride = (((bits >> shift) & 0x3FFF) << 4 for shift in (0, 16, 32))
    size, wide = tile.element_bytes, tile.row_elements
    if tile.k_major:
        return swizzled(start + position % 8 * 128 + position // 8 * stride + k * size)
    return swizzled(start + position % wide * size + position // wide * leading + k % 8 * 128 + k // 8 * stride)


@pytest.mark.parametrize("k_major", [True, False])
@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("extent", [32, 64, 96, 256])
@pytest.mark.parametrize("k_bytes", [128, 256])
def test_products_read_what_tensor_copies_wrote(extent, size, k_major, k_bytes):
    tile = OperandTile(extent, size, k_major, k_bytes=k_bytes)
    bits = tcgen05.matrix(tile.leading_bytes, ATOM_BYTES) + (3 * 1024 * 16 >> 4)
    each = 32 // size
    for step, (position, k) in itertools.product(
        range(tile.steps), itertools.product(range(0, extent, 7), range(each))
    ):
        found = read_by(tile, bits + (tile.step_bytes(step) >> 4), position, k) - 3 * 1024 * 16
        assert found == copied_to(tile, position, each * step + k)
        assert found < tile.bytes


@dataclass
class Seen:
    """What a launch gave to the tensor cores and the mbarriers; addresses are left out."""

    instructions: set = field(default_factory=set)
    matrices: set = field(default_factory=set)
    counts: Counter = field(default_factory=Counter)
    bytes: set = field(default_factory=set)


@pytest.fixture
def seen(monkeypatch):
    found = Seen()
    instruction, matrix = tcgen05_mma.decode_instruction, descriptors.decode_tcgen05
    init, expect = Mbarrier.__init__, Mbarrier.expect

    def decode_instruction(value, kind, ctas):
        found.instructions.add((value, kind, ctas))
        return instruction(value, kind, ctas)

    def decode_matrix(value):
        found.matrices.add(value & ~0x3FFF)
        return matrix(value)

    def make(self, count, *rest):
        found.counts[count] += 1
        init(self, count, *rest)

    def expecting(self, transactions):
        found.bytes.add(transactions)
        expect(self, transactions)

    monkeypatch.setattr(tcgen05_mma, "decode_instruction", decode_instruction)
    monkeypatch.setattr(descriptors, "decode_tcgen05", decode_matrix)
    monkeypatch.setattr(Mbarrier, "__init__", make)
    monkeypatch.setattr(Mbarrier, "expect", expecting)
    return found


def vendor(monkeypatch, a, b, out, accumulator, name):
    """Run NVIDIA's operator whose name has ``name``."""
    ops = pytest.importorskip("cutlass.operators")
    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_100a")
    args = ops.GemmArguments(A=a, B=b, out=out, accumulator_type=accumulator)
    found = [each for each in ops.get_operators(args, target_sm="100a") if name in each.metadata.operator_name]
    with epifuse.emulator.device("100a"), emulate.every_compile():
        found[0].run(args, found[0].compile(args, "100a"))


F16, E4M3, I8, F32 = torch.float16, torch.float8_e4m3fn, torch.int8, torch.float32
CASES = (
    (F16, F32, "kk", (128, 128), 1, "1cta_cluster1x1x1_tile128x128x64_schedulerSTATIC"),
    (F16, F32, "mm", (128, 128), 2, "2cta_cluster2x1x1_tile256x128x64_schedulerSTATIC"),
    (F16, F32, "km", (64, 64), 1, "1cta_cluster1x1x1_tile64x64x64_schedulerSTATIC"),
    (E4M3, F32, "kk", (128, 64), 2, "2cta_cluster2x1x1_tile256x64x128_schedulerSTATIC"),
    (I8, torch.int32, "mk", (128, 128), 1, "1cta_cluster1x1x1_tile128x128x128_schedulerSTATIC"),
)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the vendor's own
@pytest.mark.parametrize(("dtype", "accumulator", "majors", "tile", "ctas", "name"), CASES)
def test_beside_nvidias_operator(blackwell, seen, monkeypatch, dtype, accumulator, majors, tile, ctas, name):
    m, n, k = tile[0] * ctas, tile[1], 256
    a, b = blackwell.integers(m, k, dtype=dtype), blackwell.integers(n, k, dtype=dtype, seed=1).T
    a = a if majors[0] == "k" else a.T.contiguous().T
    b = b if majors[1] == "k" else b.contiguous()
    out = torch.zeros(m, n, dtype=accumulator)
    blackwell.launch(epifuse.GemmArguments(a, b, out, accumulator), tile, ctas)
    ours = Seen(seen.instructions.copy(), seen.matrices.copy(), Counter(seen.counts), seen.bytes.copy())
    seen.instructions.clear(), seen.matrices.clear(), seen.counts.clear(), seen.bytes.clear()
    vendor(monkeypatch, a, b, out, accumulator, name)
    # The same instruction: dtypes, majors, M and N. Theirs saturates integer sums; ours wrap, as mma.sync's do.
    assert ours.instructions == {(value & ~SATURATE, kind, pair) for value, kind, pair in seen.instructions}
    # The same layouts. Where there is one box, ours says what is to the next one (0 if K-major), theirs 1.
    config = blackwell.configured(epifuse.GemmArguments(a, b, out, accumulator), tile, ctas)
    single = config.a.boxes == 1 or config.b.boxes == 1
    known = seen.matrices | ({each & ~LEADING for each in seen.matrices} if single else set())
    assert {each & ~LEADING if single else each for each in ours.matrices} <= known
    # A stage's bytes, those of both CTAs of a pair. Theirs has one more count, for what it loads for its epilogue.
    assert ours.bytes <= seen.bytes
    # One arrival for each stage's copies and for its products; four epilogue warps of each CTA give accumulators back.
    assert set(ours.counts) == {1, 4 * ctas}
    assert ours.counts[4 * ctas] == seen.counts[4 * ctas]
