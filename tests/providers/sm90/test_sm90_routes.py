# SPDX-License-Identifier: Apache-2.0
"""A user's override of how a tensor moves: the Hopper kernel follows it, exactly, or says why it cannot."""

import pytest
import torch

pytest.importorskip("cutlass")

import epifuse as ops

M, N, K = 130, 96, 40
TEXT = "def epi(accum, c): D = accum + c; return D"
NAN = float("nan")


def served(args):
    """The families that serve arguments on sm_90a, and what each of the others says."""
    rows = {row.family: row for row in ops.explain(args, target_sm="90a")}
    return {name for name, row in rows.items() if row.operators}, {n: row.status.reason for n, row in rows.items()}


def operands(hopper, c=None, d=None, columns=N):
    """C of integers and D of NaN, each with rows of 16 bytes times something, moved as asked."""
    values = hopper.placed(hopper.integers(M, columns, dtype=torch.bfloat16), "row")
    out = hopper.placed(torch.full((M, columns), NAN, dtype=torch.bfloat16), "row")
    return {"c": ops.Load(values, **c) if c else values, "D": ops.Store(out, **d) if d else out}


@pytest.mark.parametrize(("c", "d"), [({"via": "tma"}, None), (None, {"via": "tma"}), ({"via": "tma"}, {"via": "tma"})])
def test_tensor_copies_where_they_are_asked_for(hopper, c, d):
    args = hopper.arguments((M, N, K), TEXT, **operands(hopper, c, d))
    assert served(args)[0] == {"Sm90GemmOperator"}
    operator = hopper.run(args, "pingpong", (64, 128), sm_count=2)
    assert operator.config.tail.load_bytes
    assert operator.config.tail.output_bytes


@pytest.mark.parametrize("bits", [None, 16, 32])
def test_accesses_where_they_are_asked_for(hopper, bits):
    route = {"via": "async_gmem_load"} | ({} if bits is None else {"num_bits_per_copy": bits})
    args = hopper.arguments((M, N, K), TEXT, **operands(hopper, c=route))
    families, reasons = served(args)
    assert "Sm80GemmOperator" in families
    if bits == 16:  # the tensor is then read one element at a time, which pairs of accumulators allow as well
        assert "Sm90GemmOperator" in families, reasons
    operator = hopper.run(args, "cooperative", (128, 128), sm_count=1)
    assert operator.config.tail.output_bytes
    assert not operator.config.tail.load_bytes


def test_a_width_that_pairs_of_accumulators_do_not_have_goes_to_the_portable_kernel(hopper):
    args = hopper.arguments((M, N, K), TEXT, **operands(hopper, c={"via": "sync_gmem_load", "num_bits_per_copy": 128}))
    families, reasons = served(args)
    assert families == {"Sm80GemmOperator"}
    assert "c was asked to move with num_bits_per_copy=128" in reasons["Sm90GemmOperator"]
    assert "Hopper kernel allow 32 bits" in reasons["Sm90GemmOperator"]


def test_stores_by_accesses_are_staged(hopper):
    args = hopper.arguments((M, N, K), TEXT, **operands(hopper, d={"via": "sync_gmem_store"}))
    operator = hopper.run(args, "pingpong", (64, 128), sm_count=2)
    assert not operator.config.tail.direct


def test_tensor_copies_that_cannot_be_are_refused_by_name(hopper):
    odd = {"c": ops.Load(hopper.integers(M, 97)[:, :96], via="tma"), "D": torch.full((M, 96), NAN)}
    vector = {"c": ops.Load(hopper.integers(N), via="tma"), "D": torch.full((M, N), NAN)}
    turned = {"c": hopper.integers(M, N), "D": ops.Store(torch.full((N, M), NAN).mT, via="tma")}
    for given, name in ((odd, "c"), (vector, "c"), (turned, "D")):
        args = hopper.arguments((M, N, K), TEXT, **given)
        families, reasons = served(args)
        assert not families
        for family in ("Sm80GemmOperator", "Sm90GemmOperator"):
            assert f"{name} was asked to move by TMA" in reasons[family]
