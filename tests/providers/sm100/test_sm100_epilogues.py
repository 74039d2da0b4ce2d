# SPDX-License-Identifier: Apache-2.0
"""Every node kind of a plan on the Blackwell kernel: broadcasts, both majors, many outputs, reductions, pairs."""

import pytest
import torch

pytest.importorskip("cutlass")

import epifuse as ops

# tile of a CTA, CTAs that multiply together: whole rows a thread, half warps, lanes split over N.
SHAPES = (((128, 128), 1), ((64, 64), 1), ((64, 32), 1), ((64, 128), 2), ((128, 64), 2))


@pytest.mark.parametrize(("tile", "ctas"), SHAPES)
@pytest.mark.parametrize("turned", [False, True])
def test_every_broadcast_both_majors_several_outputs(blackwell, tile, ctas, turned):
    m, n, batches = 150, 88, 2
    text = "def epi(accum, row, column, full, turned, each, alpha): D = accum * alpha + row + column * 2.0; "
    text += "E = D * full + turned; F = E - each; return D, E, F"
    values = blackwell.integers
    blank = torch.full((batches, n, m) if turned else (batches, m, n), float("nan"))
    args = blackwell.arguments(
        (m, n, 24), text, batches=batches, row=values(n), column=values(batches, m, 1), alpha=0.5,
        full=values(batches, m, n, dtype=torch.bfloat16), turned=values(batches, n, m).mT, each=values(batches, 1, 1),
        D=blank.mT if turned else blank, E=torch.empty(batches, n, m).mT, F=torch.empty(batches, m, n).half(),
    )  # fmt: skip
    blackwell.run(args, tile, ctas, sm_count=3)


@pytest.mark.parametrize(("tile", "ctas"), SHAPES)
@pytest.mark.parametrize("turned", [False, True])
def test_reductions(blackwell, tile, ctas, turned):
    m, n, batches = 150, 90, 2
    text = "def epi(accum, row): D = accum + row; r = sum(D, dim=2); c = max(D, dim=1); e = sum(D, dim=(1, 2)); "
    text += "a = min(D); x = mean(D, dim=(0, 2)); y = max(D, dim=(0, 1)); return D, r, c, e, a, x, y"
    shapes = {"r": (batches, m), "c": (batches, n), "e": (batches,), "a": (1,), "x": (m,), "y": (n,)}
    outputs = {name: torch.full(shape, 7.0) for name, shape in shapes.items()}
    d = torch.empty(batches, n, m).mT if turned else torch.empty(batches, m, n)
    args = blackwell.arguments((m, n, 24), text, batches=batches, row=blackwell.integers(n), D=d, **outputs)
    blackwell.run(args, tile, ctas, sm_count=2, seed=2)


@pytest.mark.parametrize(("tile", "ctas"), [*SHAPES, ((64, 128), 1)])
def test_reductions_beside_tensor_copies(blackwell, tile, ctas):
    m, n = 150, 260
    c = blackwell.placed(blackwell.integers(m, n), "row")
    d = blackwell.placed(torch.full((m, n), float("nan")), "row")
    text = "def epi(accum, c): D = accum + c; r = sum(D, dim=1); k = max(D, dim=0); return D, r, k"
    outputs = {"D": d, "r": torch.empty(m), "k": torch.empty(n)}
    operator = blackwell.run(blackwell.arguments((m, n, 24), text, c=c, **outputs), tile, ctas, sm_count=ctas, seed=1)
    assert operator.config.tail.bytes


@pytest.mark.parametrize(("tile", "ctas"), SHAPES)
def test_gated_columns(blackwell, tile, ctas):
    m, n = 130, 140
    text = "def epi(accum, c): D = reglu(accum) + c; r = sum(D, dim=1); k = max(D, dim=0); return D, r, k"
    outputs = {"D": torch.full((m, n // 2), float("nan")), "r": torch.empty(m), "k": torch.empty(n // 2)}
    blackwell.run(blackwell.arguments((m, n, 40), text, c=blackwell.integers(n // 2), **outputs), tile, ctas)


@pytest.mark.parametrize(("tile", "ctas"), [*SHAPES, ((128, 96), 1), ((128, 256), 2)])
def test_row_vectors_of_every_kind_through_shared_memory(blackwell, tile, ctas):
    # Each CTA takes several tiles, so that a tile's vectors take the place of another's.
    m, n, batches = 150, 300, 2
    text = "def epi(accum, mask, half, small, each, gapped): x = where(mask, accum + half, accum * small); "
    text += "D = x + each - gapped; return D"
    values = blackwell.integers
    rows = {
        "mask": values(n) > 0,
        "half": values(n + 1, dtype=torch.float16)[1:],
        "small": values(n, dtype=torch.int8),
        "each": values(batches, 1, n),
        "gapped": values(3 * n)[::3],
    }
    args = blackwell.arguments((m, n, 24), text, batches=batches, D=torch.empty(batches, m, n), **rows)
    blackwell.run(args, tile, ctas, sm_count=ctas, seed=3)


@pytest.mark.parametrize(("tile", "ctas"), SHAPES)
def test_a_row_vector_of_half_the_columns(blackwell, tile, ctas):
    m, n = 130, 280
    text = "def epi(accum, half): D = reglu(accum) * half; return D"
    row = blackwell.integers(n // 2, dtype=torch.bfloat16)
    blackwell.run(blackwell.arguments((m, n, 40), text, half=row, D=torch.empty(m, n // 2)), tile, ctas, sm_count=ctas)


@pytest.mark.parametrize("via", [None, "sync_gmem_load"])
def test_row_vectors_are_loaded_as_the_user_says(blackwell, via):
    bias = blackwell.integers(200)
    if via is not None:
        bias = ops.Load(bias, via=via, num_bits_per_copy=32)
    args = blackwell.arguments((70, 200, 40), bias=bias, D=torch.full((70, 200), float("nan")))
    operator = blackwell.run(args)
    ptx = operator.compile(args, "100a").compiled_obj.launcher.image.ptx
    assert (b"ld.shared.v4.f32" in ptx) == (via is None)


NARROW = (((128, 32), 1), ((128, 96), 1), ((64, 128), 1), ((64, 64), 1), ((64, 32), 1), ((64, 64), 2), ((128, 96), 2))


TURNED = (((128, 32), 1), ((128, 96), 1), ((128, 128), 1), ((64, 128), 2), ((128, 256), 2), ((64, 64), 1))


@pytest.mark.parametrize(
    ("tile", "ctas", "layout"), [*((*each, "row") for each in NARROW), *((*each, "column") for each in TURNED)]
)
@pytest.mark.parametrize("dtype", [torch.int8, torch.float16, torch.float32], ids=str)
def test_every_tile_moves_full_tensors_by_tensor_copies(blackwell, tile, ctas, layout, dtype):
    m, n = tile[0] * ctas + (19 if layout == "row" else 16), 2 * tile[1] + (16 if layout == "row" else 7)
    c = blackwell.placed(blackwell.integers(m, n, dtype=dtype), layout)
    d = blackwell.placed(torch.full((m, n), 1 if dtype == torch.int8 else float("nan")).to(dtype), layout)
    text = "def epi(accum, c, bias): D = accum + c - bias; return D"
    args = blackwell.arguments((m, n, 24), text, c=c, bias=blackwell.integers(n), D=d)
    operator = blackwell.run(args, tile, ctas, sm_count=ctas, seed=2)
    assert bool(operator.config.tail.bytes) == ((tile, ctas, layout) != ((64, 64), 1, "column"))


def test_tensors_that_must_be_copied_leave_out_tiles_that_do_not(blackwell):
    d = blackwell.placed(torch.full((128, 96), float("nan")), "column")
    for via, found in ((None, True), ("tma", False)):
        out = d if via is None else ops.Store(d, via=via)
        args = blackwell.arguments((128, 96, 40), bias=blackwell.integers(96), D=out)
        listed = ops.get_operators(args, target_sm="100a")
        tiles = [op.config for op in listed if type(op).__name__ == "Sm100GemmOperator"]
        assert any(config.tile_m == 64 and config.ctas == 1 for config in tiles) == found
        assert tiles


def test_output_over_an_operand(blackwell):
    m, n = 200, 300
    c = blackwell.integers(m, n)
    args = blackwell.arguments((m, n, 40), "def epi(accum, c): D = accum + c; return D", c=c, D=c)
    blackwell.run(args, (128, 256), sm_count=1, seed=4)


@pytest.mark.parametrize("step", [1, 3])
@pytest.mark.parametrize("axis", ["row", "column"])
def test_unaligned_and_strided_tensors_of_the_epilogue(blackwell, step, axis):
    m, n = 70, 45
    rooms = [torch.full((m + 2, (n + 2) * step + 1), float("nan"), dtype=torch.float16) for _ in "cd"]
    c, d = (room[1 : m + 1, 1 : 1 + n * step : step] for room in rooms)
    if axis == "column":
        rooms = [torch.full((n + 2, (m + 2) * step + 1), float("nan"), dtype=torch.float16) for _ in "cd"]
        c, d = (room[1 : n + 1, 1 : 1 + m * step : step].mT for room in rooms)
    c.copy_(blackwell.integers(m, n))
    blackwell.run(blackwell.arguments((m, n, 40), "def epi(accum, c): D = accum * 2.0 + c; return D", c=c, D=d))
    written = rooms[1].isfinite().sum()
    assert written == m * n


def test_no_epilogue(blackwell):
    a, b = blackwell.integers(70, 40, dtype=torch.float16), blackwell.integers(40, 72, dtype=torch.float16)
    out = torch.empty(70, 72, dtype=torch.float16)
    blackwell.run(ops.GemmArguments(a, b, out, torch.float32))
    assert torch.equal(out, (a.double() @ b.double()).half())


def test_the_accumulator_is_rounded_once_at_the_store(blackwell):
    # 2048 + 1 is no float16: rounded before the bias of -2048 it would leave 0.
    a = torch.zeros(1, 8, dtype=torch.float16)
    a[0, :2] = torch.tensor([2048.0, 1.0])
    b = torch.zeros(8, 8, dtype=torch.float16)
    b[:2] = 1
    d = torch.full((1, 8), float("nan"), dtype=torch.float16)
    text = "def epi(accum, bias): D = accum + bias; return D"
    epilogue = ops.EpilogueArguments(text, bias=torch.full((8,), -2048.0, dtype=torch.float16), D=d)
    blackwell.run(ops.GemmArguments(a, b, d, torch.float32, epilogue))
    assert torch.equal(d, torch.ones_like(d))
