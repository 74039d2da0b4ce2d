# SPDX-License-Identifier: Apache-2.0
"""The portable kernel's address arithmetic, in plain numbers: nothing is lost, nothing meets, nothing collides."""

import itertools

import pytest

pytest.importorskip("cutlass")

from epifuse.dtypes import of
from epifuse_cutedsl.configs.sm80 import configurations
from epifuse_cutedsl.kernels.sm80.copy import copy_shape
from epifuse_cutedsl.kernels.sm80.fragments import Fragments
from epifuse_cutedsl.kernels.sm80.operand import MainTraits, shared_tile
from epifuse_cutedsl.tile.smem import gathered, padded, rowwise
from epifuse_cutedsl.tile.stage import StageShape, run_that_fits

DTYPES = {"half": "bfloat16", "tf32": "float32", "byte": "int8", "f32": "float32", "f64": "float64"}
CCS = (80, 86, 89, 90, 100, 120)
MAJORS = ("k", "mn")


def all_configurations():
    found = {}
    for kind, dtype in DTYPES.items():
        for config in configurations(kind, 8 if kind == "f64" else 4, 90):
            found[str(config)] = (config, of(dtype))
    return list(found.values())


CONFIGURATIONS = all_configurations()


@pytest.mark.parametrize("rows", [16, 64])
@pytest.mark.parametrize("row_bytes", [16, 32, 64, 128, 256, 512, 1024])
@pytest.mark.parametrize("make", [rowwise, padded, lambda r, b: gathered(r, b, 1), lambda r, b: gathered(r, b, 4)])
def test_a_tile_has_a_place_of_its_own_for_every_byte(make, rows, row_bytes):
    tile = make(rows, row_bytes)
    places = {tile.offset(row, byte) for row in range(rows) for byte in range(row_bytes)}
    assert len(places) == rows * row_bytes
    assert max(places) < tile.bytes
    for row, chunk in itertools.product(range(rows), range(row_bytes // 16)):
        first = tile.offset(row, 16 * chunk)
        assert first % 16 == 0
        assert [tile.offset(row, 16 * chunk + i) for i in range(16)] == list(range(first, first + 16))


@pytest.mark.parametrize("make", [rowwise, padded, lambda r, b: gathered(r, b, 1), lambda r, b: gathered(r, b, 4)])
def test_a_step_is_an_exclusive_or_and_a_displacement(make):
    tile = make(64, 128)
    for row, rows in itertools.product(range(4), (0, 4, 8, 20, 32)):
        for byte, more in itertools.product((0, 4, 16), (0, 32, 64, 96)):
            turn, displacement = tile.step(rows, more)
            assert (tile.offset(row, byte) ^ turn) + displacement == tile.offset(row + rows, byte + more)


@pytest.mark.parametrize(("config", "dtype"), CONFIGURATIONS, ids=lambda x: str(x).replace(" ", "_"))
def test_copies_cover_a_tile_once(config, dtype):
    for major, extent in itertools.product(MAJORS, {config.tile_m, config.tile_n}):
        for vector in (dtype.bytes, 16):
            traits = MainTraits(dtype, major, vector)
            shape = copy_shape(traits, extent, config.tile_k, config.threads, tensor=config.tensor)
            seen = []
            for thread in range(config.threads):
                row, chunk = shape.place(thread)
                for i, j in itertools.product(range(shape.passes), range(shape.repeats)):
                    at_row, at_chunk = row + i * shape.row_threads, chunk + j * shape.chunk_threads
                    if shape.some_idle and row >= shape.tile.rows:
                        continue
                    seen.append((at_row, at_chunk))
                    turn, displacement = shape.tile.step(
                        i * shape.row_threads, j * shape.chunk_threads * shape.piece_bytes
                    )
                    place = (shape.tile.offset(row, chunk * shape.piece_bytes) ^ turn) + displacement
                    assert place == shape.tile.offset(at_row, at_chunk * shape.piece_bytes)
            chunks = shape.tile.row_bytes // shape.piece_bytes
            assert sorted(seen) == [(r, c) for r in range(shape.tile.rows) for c in range(chunks)]


def fragments():
    for (config, dtype), major, is_a in itertools.product(CONFIGURATIONS, MAJORS, (True, False)):
        if config.tensor:
            extent, warps = (config.tile_m, config.warps_m) if is_a else (config.tile_n, config.warps_n)
            tile = shared_tile(MainTraits(dtype, major, 16), extent, config.tile_k, tensor=True)
            yield Fragments(tile, is_a, major == "k", dtype.bytes, extent // warps)


UNIQUE_FRAGMENTS = list(dict.fromkeys(fragments()))
# The smallest tiles of gathered operands do collide.
WIDE_FRAGMENTS = [f for f in UNIQUE_FRAGMENTS if not f.gathered or (f.width == 4 and f.tile.row_bytes >= 128)]


@pytest.mark.parametrize("fragment", UNIQUE_FRAGMENTS, ids=range(len(UNIQUE_FRAGMENTS)))
def test_fragments_hold_every_position_once(fragment):
    held = []
    for index in range(fragment.extent // 8):
        base, scale = fragment.position(index)
        held += [base + scale * g for g in range(8)]
    assert sorted(held) == list(range(fragment.extent))


def conflicts(addresses, access_bytes):
    """The most 4-byte words of one bank that the lanes of one phase need, over all phases."""
    lanes = 128 // access_bytes if access_bytes > 4 else 32
    worst = 0
    for first in range(0, len(addresses), lanes):
        words = {a // 4 + w for a in addresses[first : first + lanes] for w in range(max(1, access_bytes // 4))}
        banks = [word % 32 for word in words]
        worst = max(worst, *(banks.count(bank) for bank in set(banks)))
    return worst


@pytest.mark.parametrize("fragment", WIDE_FRAGMENTS, ids=range(len(WIDE_FRAGMENTS)))
def test_fragments_are_read_without_bank_conflicts(fragment):
    access = 16 if not fragment.gathered or fragment.element_bytes == 4 else 4
    addresses = [fragment.lane_offset(0, lane) for lane in range(32)]
    assert conflicts(addresses, access) == 1


@pytest.mark.parametrize(("config", "dtype"), CONFIGURATIONS, ids=lambda x: str(x).replace(" ", "_"))
def test_the_epilogue_reads_every_element_once(config, dtype):
    for axis, wanted in (("n", 4), ("m", 16)):
        shape = config.stage_shape(4, axis, wanted)
        assert shape.run <= wanted
        seen = set()
        for thread in range(config.threads):
            line, place = shape.start(thread)
            for step, run, i in itertools.product(range(shape.steps), range(shape.runs), range(shape.run)):
                seen.add((line + step * shape.lines_per_step, place + run * shape.lanes * shape.run + i))
        assert len(seen) == config.tile_m * config.tile_n == config.threads * shape.steps * shape.runs * shape.run
        assert seen == {(x, y) for x in range(shape.lines) for y in range(shape.line)}


@pytest.mark.parametrize("axis", "nm")
def test_a_warp_of_the_epilogue_reads_whole_lines(axis):
    for wanted in (1, 2, 4, 8, 16):
        run = run_that_fits(128, 64, axis, 128, wanted)
        shape = StageShape(128, 64, axis, 4, 128, run)
        assert shape.lanes * shape.run * shape.runs == shape.line
        assert 32 % shape.lanes == 0


@pytest.mark.parametrize(("axis", "width"), [("n", 2), ("m", 1)])
def test_accumulators_are_staged_without_bank_conflicts(axis, width):
    shape = StageShape(128, 128, axis, 4, 128, 4)
    addresses = [shape.offset(lane // 4, 2 * (lane % 4)) for lane in range(32)]
    assert conflicts(addresses, 4 * width) == 1


@pytest.mark.parametrize("cc", CCS)
@pytest.mark.parametrize("kind", DTYPES)
def test_tables_of_tiles(kind, cc):
    limit = {80: 163, 90: 227, 100: 227}.get(cc, 99) * 1024
    found = configurations(kind, 8 if kind == "f64" else 4, cc)
    tiles = {(c.tile_m, c.tile_n) for c in found}
    assert {(16, 64), (32, 64), (64, 64), (128, 64)} <= tiles
    assert all(c.smem_bytes(8 if kind == "f64" else 4, axis) <= limit for c in found for axis in "nm")
    assert all(c.stages >= 2 and c.threads in (64, 128, 256) for c in found)
    if kind == "half":
        assert {(c.tile_m, c.tile_n, c.tile_k) for c in found} >= {(m, 64, 32) for m in (16, 32, 64)}
        assert ((128, 256) in tiles) == (cc in (80, 90, 100))


def test_scratch_is_taken_from_the_stages():
    scratch = 32 * 1024
    with_scratch = configurations("half", 4, 86, scratch)
    assert with_scratch
    assert all(c.smem_bytes(4, axis) + scratch <= 99 * 1024 for c in with_scratch for axis in "nm")
    assert any(c.smem_bytes(4) + scratch > 99 * 1024 for c in configurations("half", 4, 86))


def test_stages_leave_room_for_the_rows_ctas():
    found = {(c.tile_m, c.tile_n, c.tile_k, c.stages): c for c in configurations("half", 4, 90)}
    assert 2 * (found[128, 128, 64, 3].smem_bytes(4) + 1024) <= 228 * 1024
    assert 3 * (found[64, 128, 64, 3].smem_bytes(4) + 1024) <= 228 * 1024
    assert len(found) <= 28
