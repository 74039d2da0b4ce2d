# SPDX-License-Identifier: Apache-2.0
"""Scalars in every form: Python's and numpy's numbers, arrays and tensors of one element, in every dtype of theirs."""

import numpy as np
import pytest
import torch

import epifuse as ops
from epifuse.errors import OperandError, OperandTypeError

M, N, K = 3, 5, 2
SCALED = "def epi(accum, alpha): D = accum * alpha; return D"
ADDED = "def epi(accum, k): D = accum + k; return D"


def run(text, dtype=torch.float32, accumulator=torch.float32, out=torch.float32, **operands):
    A, B = torch.ones(M, K, dtype=dtype), torch.arange(K * N).view(K, N).to(dtype)
    D = torch.full((M, N), 77, dtype=out)
    args = ops.GemmArguments(A, B, D, accumulator, ops.EpilogueArguments(text, D=D, **operands))
    (operator,) = ops.get_operators(args)
    return (A.double() @ B.double()), D, args, operator


FORMS = {
    "int": 2,
    "numpy float64": np.float64(2.0),
    "numpy int64": np.int64(2),
    "numpy 0-dim float64": np.array(2.0),
    "numpy one float64": np.array([2.0]),
    "numpy one int64": np.array([[2]]),
    "0-dim float64": torch.tensor(2.0, dtype=torch.float64),
    "0-dim int64": torch.tensor(2),
    "one int64": torch.tensor([2]),
    "three dimensions": torch.tensor([[[2.0]]], dtype=torch.float64),
    "half": torch.tensor(2.0).half(),
}


@pytest.mark.parametrize("alpha", FORMS.values(), ids=FORMS)
def test_every_form_of_a_number(alpha):
    exact, D, args, operator = run(SCALED, alpha=alpha)
    operator.run(args)
    assert torch.equal(D, (exact * 2).float())


def test_wide_scalars_are_rounded_once_and_read_at_each_run():
    alpha = torch.tensor(1 / 3, dtype=torch.float64)
    exact, D, args, operator = run(SCALED, alpha=alpha)
    operator.run(args)
    assert torch.equal(D, exact.float() * torch.tensor(1 / 3))
    alpha.fill_(3.0)
    operator.run(args)
    assert torch.equal(D, (exact * 3).float())
    assert args.plan == run(SCALED, alpha=0.25)[2].plan


def test_a_float64_accumulator_sees_all_of_a_float64_scalar():
    f64 = torch.float64
    exact, D, args, operator = run(SCALED, f64, f64, f64, alpha=np.array(1 / 3))
    operator.run(args)
    assert torch.equal(D, exact * (1 / 3))


def test_int64_scalars_stay_exact_or_are_refused_before_anything_is_written():
    k = torch.tensor(2**30)
    exact, D, args, operator = run(ADDED, torch.int8, torch.int32, torch.int32, k=k)
    operator.run(args)
    assert torch.equal(D, (exact + 2**30).int())
    k.fill_(2**40)
    before = D.clone()
    with pytest.raises(OperandError, match="does not fit int32"):
        operator.run(args)
    assert torch.equal(D, before)
    exact, D, args, operator = run(ADDED, k=k)
    operator.run(args)
    assert torch.equal(D, (exact + 2.0**40).float())


def test_numbers_beyond_all_floats_are_refused_by_name():
    with pytest.raises(OperandError, match="alpha=an integer of 1329 bits"):
        run(SCALED, alpha=10**400)
    with pytest.raises(OperandError, match="k=an integer of 1329 bits"):
        run(ADDED, torch.int8, torch.int32, torch.int32, k=10**400)


def test_wide_vectors_are_still_refused():
    with pytest.raises(OperandError, match="'alpha' is float64"):
        run(SCALED, alpha=np.ones(N))


def test_messages_name_the_operand_and_stay_short():
    D = torch.empty(M, N)
    with pytest.raises(TypeError, match="alpha has dtype torch.complex64"):
        ops.EpilogueArguments(SCALED, alpha=torch.ones(N, dtype=torch.complex64), D=D)
    with pytest.raises(TypeError, match="alpha has layout"):
        ops.EpilogueArguments(SCALED, alpha=torch.eye(N).to_sparse(), D=D)
    with pytest.raises(TypeError, match="B is None"):
        ops.GemmArguments(torch.ones(M, K), None, D, torch.float32)
    with pytest.raises(OperandTypeError) as caught:
        ops.GemmArguments([[1.0] * 1000] * 1000, None, D, torch.float32)
    assert "A is " in str(caught.value)
    assert len(str(caught.value)) < 500
