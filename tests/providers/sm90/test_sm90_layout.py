# SPDX-License-Identifier: Apache-2.0
"""Tiles in shared memory: descriptors and steps against the PTX ISA's formulas, written out once more.

PTX ISA, "Asynchronous Warpgroup Level Matrix Shared Memory Layout": canonical layouts with 128-byte swizzle, in units
of 16-byte chunks. K-major: ((8, rows / 8), chunks of K) with strides ((8, stride offset), 1). MN-major: ((8, blocks of
64), (8, k / 8)) with strides ((1, leading offset), (8, stride offset)). Then bits 4 to 6 of an address are
exclusive-ored with bits 7 to 9.
"""

import itertools

import pytest

pytest.importorskip("cutlass")

from epifuse_cutedsl.configs.sm90 import configurations
from epifuse_cutedsl.kernels.ptx import wgmma
from epifuse_cutedsl.tile.operand import ATOM_BYTES, OperandTile
from epifuse_cutedsl.tile.smem import limit_bytes


def swizzled(address):
    return address ^ ((address >> 7 & 7) << 4)


def copied_to(tile, position, k):
    """Where a tensor copy puts element (position, k): rows of 128 bytes, one box behind the other."""
    if tile.k_major:
        return k // tile.row_elements * tile.box_bytes + swizzled(position * 128 + k % tile.row_elements * 2)
    return swizzled(position // tile.row_elements * tile.box_bytes + k * 128 + position % tile.row_elements * 2)


def read_by(tile, bits, position, k):
    """Where wgmma looks for element (position, k) of one instruction's matrix whose descriptor is ``bits``."""
    start, leading, stride = (((bits >> shift) & 0x3FFF) << 4 for shift in (0, 16, 32))
    if tile.k_major:
        return swizzled(start + position % 8 * 128 + position // 8 * stride + k * 2)
    return swizzled(start + position % 64 * 2 + position // 64 * leading + k % 8 * 128 + k // 8 * stride)


def descriptor_of(tile):
    """The matrix descriptor without its address."""
    return wgmma.descriptor(tile.leading_bytes, ATOM_BYTES)


@pytest.mark.parametrize("k_major", [True, False])
@pytest.mark.parametrize(("extent", "tile_k"), [(64, 64), (64, 128), (64, 256), (128, 64), (192, 64), (256, 128)])
def test_wgmma_reads_what_tensor_copies_wrote(extent, tile_k, k_major):
    tile = OperandTile(extent, 2, k_major, k_bytes=2 * tile_k)
    base = 3 * 1024 * 64
    for step, (position, k) in itertools.product(range(tile_k // 16), itertools.product(range(extent), range(16))):
        bits = wgmma.moved(descriptor_of(tile) + (base >> 4), tile.step_bytes(step))
        assert read_by(tile, bits, position, k) - base == copied_to(tile, position, 16 * step + k)


@pytest.mark.parametrize("k_major", [True, False])
def test_blocks_of_64_rows_begin_where_they_are_said_to(k_major):
    tile = OperandTile(256, 2, k_major)
    for block, row, k in itertools.product(range(4), range(64), range(16)):
        bits = wgmma.moved(descriptor_of(tile), tile.position_bytes(64 * block))
        assert read_by(tile, bits, row, k) == copied_to(tile, 64 * block + row, k)


def test_a_descriptor_says_128_byte_swizzle_and_no_base_offset():
    bits = descriptor_of(OperandTile(128, 2, True))
    assert bits >> 62 == 1
    assert bits >> 49 & 7 == 0


@pytest.mark.parametrize("scratch", [0, 4096])
def test_configurations_fit(scratch):
    found = configurations(90, scratch)
    assert len(found) >= 6
    for config in found:
        assert config.smem_bytes(scratch) <= limit_bytes(90)
        assert config.accumulators <= 192
        assert config.rows % 64 == 0
        assert config.columns % config.epilogue_n == 0
        assert config.depth <= config.blocks * config.pieces
        assert config.stage_bytes % 1024 == 0
        assert config.a_bytes % 1024 == 0
        for axis in "nm":
            assert config.stage_shape(axis, 1).bytes <= config.staged_bytes
