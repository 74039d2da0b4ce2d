# SPDX-License-Identifier: Apache-2.0
"""The Hopper kernel's PTX, run: exact results for every mode, major, tail and number of tiles of a CTA.

NaN lies around and between the operands' elements, and outputs are prefilled with it.
"""

import pytest
import torch

pytest.importorskip("cutlass")

import epifuse as ops

MODES = (
    ("cooperative", (128, 256), 1),
    ("cooperative", (256, 128), 1),
    ("cooperative", (128, 128), 1),
    ("pingpong", (128, 192), 1),
    ("pingpong", (128, 128), 1),
    ("pingpong", (64, 256), 1),
    ("pingpong", (64, 128), 1),
    ("cooperative", (128, 256), 2),
    ("pingpong", (128, 192), 2),
    ("pingpong", (128, 128), 2),
    ("pingpong", (64, 128), 2),
)


@pytest.mark.parametrize(("mode", "tile", "cluster"), MODES)
def test_ragged_tiles_are_exact_and_ctas_take_several(hopper, mode, tile, cluster):
    # Two SMs for six tiles or more: rings and staged tiles are used again, with every phase of the mbarriers.
    size = (2 * tile[0] + 3, tile[1] + 10, 200)
    operator = hopper.run(hopper.arguments(size), mode, tile, 1, None, cluster, seed=3, sm_count=2)
    assert operator.config.stages >= 3


@pytest.mark.parametrize("majors", ["kk", "mm"])
@pytest.mark.parametrize(("mode", "tile"), [("cooperative", (128, 256)), ("pingpong", (128, 192))])
@pytest.mark.parametrize("seed", range(2))
def test_clusters_share_the_tiles_of_b(hopper, mode, tile, majors, seed):
    args = hopper.arguments((300, 200, 450), majors=majors, batches=2)
    hopper.run(args, mode, tile, group=8, cluster=2, sm_count=5, seed=seed)
    hopper.run(hopper.arguments((1, 1, 0)), mode, tile, cluster=2)


@pytest.mark.parametrize("majors", ["kk", "mm"])
@pytest.mark.parametrize("tile", [(128, 128), (64, 128)])
def test_clusters_share_the_tiles_of_a(hopper, tile, majors):
    args = hopper.arguments((3 * tile[0] + 5, 5 * tile[1] - 9, 700), majors=majors, batches=2)
    operator = hopper.run(args, "pingpong", tile, cluster=(1, 2), sm_count=4, seed=4)
    assert operator.config.ctas == 2


@pytest.mark.parametrize("majors", ["kk", "km", "mk", "mm"])
@pytest.mark.parametrize("mode", ["cooperative", "pingpong"])
def test_majors(hopper, majors, mode):
    hopper.run(hopper.arguments((141, 150, 136), majors=majors, dtype=torch.float16), mode, sm_count=3, seed=1)


@pytest.mark.parametrize("k", [0, 1, 64, 65, 320, 328])
@pytest.mark.parametrize("mode", ["cooperative", "pingpong"])
def test_k_tails_and_wraps_of_the_ring(hopper, k, mode):
    hopper.run(hopper.arguments((130, 130, k)), mode, sm_count=1, seed=k)


@pytest.mark.parametrize("size", [(1, 1, 8), (1, 200, 40), (200, 1, 40), (128, 128, 64)])
def test_thin_and_whole_problems(hopper, size):
    hopper.run(hopper.arguments(size))
    hopper.run(hopper.arguments(size, majors="mm"), "pingpong")


@pytest.mark.parametrize("share_b", [False, True])
@pytest.mark.parametrize("mode", ["cooperative", "pingpong"])
def test_batches(hopper, mode, share_b):
    args = hopper.arguments((130, 70, 72), batches=3, majors="km", share_b=share_b)
    hopper.run(args, mode, group=8, sm_count=4, seed=5)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("mode", "tile"), [("cooperative", (128, 128)), ("pingpong", (64, 128))])
def test_schedules(hopper, mode, tile, seed):
    hopper.run(hopper.arguments((260, 200, 450)), mode, tile, group=8, sm_count=2, seed=seed)


@pytest.mark.parametrize("mode", ["cooperative", "pingpong"])
def test_every_broadcast_both_majors_several_outputs(hopper, mode):
    m, n, batches = 150, 88, 2
    text = "def epi(accum, row, column, full, turned, each, alpha): D = accum * alpha + row + column * 2.0; "
    text += "E = D * full + turned; F = E - each; return D, E, F"
    values = hopper.integers
    args = hopper.arguments(
        (m, n, 24), text, batches=batches, row=values(n), column=values(batches, m, 1), alpha=0.5,
        full=values(batches, m, n, dtype=torch.bfloat16), turned=values(batches, n, m).mT, each=values(batches, 1, 1),
        D=torch.empty(batches, m, n), E=torch.empty(batches, n, m).mT, F=torch.empty(batches, m, n).half(),
    )  # fmt: skip
    hopper.run(args, mode, sm_count=3)


@pytest.mark.parametrize(("mode", "tile"), [("cooperative", (128, 256)), ("pingpong", (128, 128))])
@pytest.mark.parametrize("turned", [False, True])
def test_reductions(hopper, mode, tile, turned):
    m, n, batches = 150, 200, 2
    text = "def epi(accum, row): D = accum + row; r = sum(D, dim=2); c = max(D, dim=1); e = sum(D, dim=(1, 2)); "
    text += "a = min(D); x = mean(D, dim=(0, 2)); return D, r, c, e, a, x"
    shapes = {"r": (batches, m), "c": (batches, n), "e": (batches,), "a": (1,), "x": (m,)}
    outputs = {name: torch.full(shape, 7.0) for name, shape in shapes.items()}
    d = torch.empty(batches, n, m).mT if turned else torch.empty(batches, m, n)
    args = hopper.arguments((m, n, 24), text, batches=batches, row=hopper.integers(n), D=d, **outputs)
    hopper.run(args, mode, tile, sm_count=2, seed=2)


def test_gated_columns(hopper):
    m, n = 130, 140
    text = "def epi(accum, c): D = reglu(accum) + c; return D"
    args = hopper.arguments((m, n, 40), text, c=hopper.integers(n // 2), D=torch.full((m, n // 2), float("nan")))
    hopper.run(args, "pingpong")


def test_output_over_an_operand(hopper):
    m, n = 200, 300
    c = hopper.integers(m, n)
    args = hopper.arguments((m, n, 40), "def epi(accum, c): D = accum + c; return D", c=c, D=c)
    hopper.run(args, "cooperative", (128, 256), sm_count=1, seed=4)


def test_no_epilogue(hopper):
    a, b = hopper.integers(70, 40, dtype=torch.float16), hopper.integers(40, 72, dtype=torch.float16)
    out = torch.empty(70, 72, dtype=torch.float16)
    args = ops.GemmArguments(a, b, out, torch.float32)
    with ops.emulator.device("90a"):
        hopper.operator_of(args, "cooperative", (128, 128)).run(args)
    assert torch.equal(out, (a.double() @ b.double()).half())
