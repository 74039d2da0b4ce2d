# SPDX-License-Identifier: Apache-2.0
"""What shares shared memory, lanes or tensor maps: full operands beside reductions, more tensors than maps, threads."""

import threading

import pytest
import torch

pytest.importorskip("cutlass")

import epifuse as ops
from epifuse_cutedsl.operators_sm100 import Sm100GemmOperator

SHAPES = (((128, 128), 1), ((64, 64), 1), ((64, 96), 1), ((128, 160), 2))


@pytest.mark.parametrize(("tile", "ctas"), SHAPES)
@pytest.mark.parametrize("major", ["row", "column"])
def test_full_operands_beside_reductions(blackwell, tile, ctas, major):
    m, n = 140, 104
    text = "def epi(accum, row, c): D = accum * 2.0 + row - c; r = max(D, dim=1); x = sum(accum + c, dim=0); "
    text += "return D, r, x"
    c = blackwell.placed(blackwell.integers(m, n, dtype=torch.float16), major)
    outputs = {"D": blackwell.placed(torch.full((m, n), float("nan"), dtype=torch.float16), major)}
    outputs |= {"r": torch.full((m,), 7.0), "x": torch.full((n,), 7.0)}
    args = blackwell.arguments((m, n, 40), text, row=blackwell.integers(n), c=c, **outputs)
    blackwell.run(args, tile, ctas, sm_count=2, seed=1)


@pytest.mark.parametrize(("tile", "ctas"), SHAPES[1:])
def test_more_full_tensors_than_tensor_maps(blackwell, tile, ctas):
    m, n = 141, 72
    dtypes = (torch.float16, torch.bfloat16, torch.float32, torch.int8)
    loads = {
        name: blackwell.placed(blackwell.integers(m, n, dtype=dtypes[i % 4], seed=i), ("row", "row", "column")[i % 3])
        for i, name in enumerate("abcde")
    }
    outputs = {
        name: blackwell.placed(torch.full((m, n), 77).to(dtypes[i % 3]), ("row", "row", "column")[i % 3])
        for i, name in enumerate("DEFGH")
    }
    text = "def epi(accum, a, b, c, d, e): D = accum + a; E = D + b * 2.0; F = E - c; G = F + d; H = G - e; "
    blackwell.run(blackwell.arguments((m, n, 24), text + "return D, E, F, G, H", **loads, **outputs), tile, ctas)


def test_threads_share_an_operator(blackwell):
    m, n = 140, 72
    given = []
    for seed in range(3):
        blank = torch.full((m, n), float("nan"))
        text = "def epi(accum, s): D = accum * s; x = max(D, dim=0); return D, x"
        given.append(
            blackwell.arguments((m, n, 72), text, s=float(seed + 1), D=blank, x=torch.full((n,), float("nan")))
        )
    failed: list[BaseException] = []

    def run(args):
        try:
            operator.run(args)
        except BaseException as error:  # noqa: BLE001 - shown below
            failed.append(error)

    with ops.emulator.device("100a", seed=3, sm_count=4):
        operator = Sm100GemmOperator.operator_of(given[0], blackwell.configured(given[0], (128, 64), 2, (2, 1)), 1)
        threads = [threading.Thread(target=run, args=(args,)) for args in given]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failed
    for seed, args in enumerate(given):
        want = (args.A.view.float() @ args.B.view.float()) * (seed + 1)
        found = dict(zip(args.bound.names.stores, args.outputs, strict=True))
        assert torch.equal(found["D"], want)
        assert torch.equal(found["x"], want.amax(0))
