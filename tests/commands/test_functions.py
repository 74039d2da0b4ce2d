# SPDX-License-Identifier: Apache-2.0
"""Epilogues from files, operands from descriptions."""

import sys

import pytest
import torch

from epifuse import dtypes
from epifuse.commands.functions import Problem, describe, invent, load_function, parse_operands
from epifuse.errors import DtypeError, EpilogueError

PROBLEM = Problem(m=5, n=8, k=3, batch=None, dtype=dtypes.FLOAT16, accumulator=dtypes.FLOAT32)
BATCHED = Problem(m=5, n=8, k=3, batch=2, dtype=dtypes.BFLOAT16, accumulator=dtypes.FLOAT32)
FILE = """
from epifuse.fusion.activation import mean, relu, sum, swiglu
SCALE = 3

def helper(x):
    return x * SCALE

def first(accum, bias, s=2.0):
    D = relu(helper(accum) * s + bias)
    return D

def second(accum):
    D = accum + 1.0
    return D
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "my_epilogues.py"
    path.write_text(FILE)
    return path


def test_a_function_by_name_with_what_it_refers_to(file):
    function = load_function(f"{file}:first")
    args, assumed = invent(function, PROBLEM, {"bias": "N:float32"})
    assert 3.0 in [c.literal.value for c in args.plan.constants]
    assert assumed == {"s": "2.0 (its default)", "D": "(5, 8) float16"}


def test_the_only_epilogue_needs_no_name(file):
    file.write_text(FILE.replace("second(accum)", "second(x)"))
    assert load_function(str(file)).__name__ == "first"


@pytest.mark.parametrize(
    ("place", "sentence", "advice"),
    [
        ("{file}", "2 functions", "first, second"),
        ("{file}:third", "no function 'third'", "first, second"),
        ("{file}:SCALE", "no function 'SCALE'", "first, second"),
        ("{file}x", "no file", "FILE.py:function"),
        ("nowhere.py:f", "no file", "FILE.py:function"),
    ],
)
def test_what_cannot_be_found_is_said_with_what_can(file, place, sentence, advice):
    with pytest.raises(EpilogueError, match=sentence) as caught:
        load_function(place.format(file=file))
    assert advice in str(caught.value)


def test_a_file_finds_its_neighbors(file):
    (file.parent / "a_neighbor.py").write_text("FACTOR = 7\n")
    file.write_text("from a_neighbor import FACTOR\ndef f(accum): D = accum * FACTOR; return D\n")
    before = list(sys.path)
    args, _ = invent(load_function(str(file)), PROBLEM, {})
    assert [c.literal.value for c in args.plan.constants] == [7.0]
    assert sys.path == before


@pytest.mark.parametrize("text", ["import no_such_module", "def f(:", "1 / 0"])
def test_a_file_that_cannot_be_imported_is_a_sentence(file, text):
    file.write_text(text)
    with pytest.raises(EpilogueError, match="cannot be imported: (ModuleNotFound|Syntax|ZeroDivision)Error"):
        load_function(str(file))


@pytest.mark.parametrize(
    ("text", "shape", "dtype"),
    [
        ("N", (8,), torch.float16),
        ("M,1", (5, 1), torch.float16),
        ("(M, N):float32", (5, 8), torch.float32),
        ("M,N:bf16", (5, 8), torch.bfloat16),
        ("17:int8", (17,), torch.int8),
        ("K,L", (3, 1), torch.float16),
        (":float32", (), torch.float32),
    ],
)
def test_descriptions_of_tensors(text, shape, dtype):
    tensor = describe("x", text, PROBLEM)
    assert tuple(tensor.shape) == shape
    assert tensor.dtype == dtype


@pytest.mark.parametrize(("text", "number"), [("17", 17), ("-3", -3), ("0.5", 0.5), ("-1e-3", -1e-3), (".5", 0.5)])
def test_descriptions_of_numbers(text, number):
    found = describe("x", text, PROBLEM)
    assert found == number
    assert type(found) is type(number)


def test_batches_have_their_letter():
    assert tuple(describe("x", "L,1,N", BATCHED).shape) == (2, 1, 8)


def test_a_bad_description_is_refused():
    with pytest.raises(EpilogueError, match="'Q' is no extent"):
        describe("x", "M,Q", PROBLEM)
    with pytest.raises(DtypeError, match="int7"):
        describe("x", "M,N:int7", PROBLEM)


def test_operands_as_options():
    assert parse_operands(["C=M,N:float16"], ["--bias", "N", "--alpha=-0.5", "--my-scale", "-2"]) == {
        "C": "M,N:float16",
        "bias": "N",
        "alpha": "-0.5",
        "my_scale": "-2",
    }


@pytest.mark.parametrize(
    ("operands", "extra", "what"),
    [
        (["C"], [], "describes no operand"),
        ([], ["bias", "N"], "'bias' is no option"),
        ([], ["--bias"], "'--bias' is no option"),
        (["C=M"], ["--C", "N"], "described twice"),
    ],
)
def test_malformed_operands_are_refused(operands, extra, what):
    with pytest.raises(EpilogueError, match=what):
        parse_operands(operands, extra)


def test_a_description_without_a_parameter_is_refused():
    with pytest.raises(EpilogueError, match="no operand 'gamma'") as caught:
        invent("def f(accum, alpha): D = accum * alpha; return D", PROBLEM, {"gamma": "1.0"})
    assert "alpha, D" in str(caught.value)


@pytest.mark.parametrize(
    ("body", "problem", "shapes"),
    [
        ("D = accum; s = sum(accum)", PROBLEM, {"D": (5, 8), "s": (1,)}),
        ("D = accum; s = sum(accum, dim=0)", PROBLEM, {"D": (5, 8), "s": (8,)}),
        ("D = accum; s = amax(accum, dim=-1, keepdim=True)", PROBLEM, {"D": (5, 8), "s": (5, 1)}),
        ("D = accum; s = mean(accum, dim=(1, 2))", BATCHED, {"D": (2, 5, 8), "s": (2,)}),
        ("D = accum; s = min(accum, dim=[0, 1])", BATCHED, {"D": (2, 5, 8), "s": (8,)}),
        ("D = swiglu(accum); s = accum + 1.0", BATCHED, {"D": (2, 5, 4), "s": (2, 5, 8)}),
    ],
)
def test_outputs_are_invented_with_the_shapes_that_bind(body, problem, shapes):
    names = ", ".join(shapes)
    args, _ = invent(f"def f(accum): {body}; return {names}", problem, {})
    assert {name: tuple(args.epilogue.tensors[name].shape) for name in shapes} == shapes


def test_integers_are_stored_as_int32():
    problem = Problem(m=5, n=8, k=3, batch=None, dtype=dtypes.INT8, accumulator=dtypes.INT32)
    args, _ = invent("def f(accum): D = accum + 1; return D", problem, {})
    assert args.epilogue.tensors["D"].dtype == torch.int32


@pytest.mark.parametrize("extents", [(0, 8, 3), (5, 0, 3), (5, 8, 0), (1, 1, 1)])
def test_extents_may_be_zero_and_one(extents):
    m, n, k = extents
    problem = Problem(m=m, n=n, k=k, batch=0, dtype=dtypes.FLOAT16, accumulator=dtypes.FLOAT32)
    args, _ = invent("def f(accum, c): D = accum + c; return D", problem, {"c": "L,M,N"})
    assert args.epilogue.tensors["c"].shape == (0, m, n)


def test_extents_beyond_memory_cost_nothing():
    big = Problem(m=2**20, n=2**20, k=2**20, batch=None, dtype=dtypes.FLOAT16, accumulator=dtypes.FLOAT32)
    args, _ = invent("def f(accum, c): D = accum + c; return D", big, {"c": "M,N"})
    assert args.problem_size.M == 2**20
