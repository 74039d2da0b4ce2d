# SPDX-License-Identifier: Apache-2.0
"""Shapes and types: torch's broadcasting rule, reductions' axes, dtypes, and the messages of what is refused."""

import itertools
import warnings

import pytest
import torch

from epifuse import dtypes
from epifuse.errors import BroadcastWarning, OperandError
from epifuse.fusion.frontend import parse
from epifuse.fusion.ir import infer
from epifuse.fusion.ir.infer import Problem, broadcast_of, check_output, check_reductions, reduction_axes
from epifuse.fusion.ir.node import Broadcast
from epifuse.fusion.plan import Access, OperandSpec

FLAT = Problem(1, 5, 7)
SQUARE = Problem(1, 6, 6)
BATCHED = Problem(3, 5, 7, rank=3)


def packed(shape: tuple[int, ...]) -> tuple[int, ...]:
    return torch.empty(shape, device="meta").stride()


def kind_of(shape: tuple[int, ...], problem: Problem, strides: tuple[int, ...] | None = None) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return broadcast_of("x", shape, strides or packed(shape), problem).name


# --- broadcasts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "problem", "expected"),
    [
        ((), FLAT, "SCALAR"),
        ((1,), FLAT, "SCALAR"),
        ((1, 1), FLAT, "SCALAR"),
        ((1, 1, 1), FLAT, "SCALAR"),
        ((7,), FLAT, "ROW"),
        ((1, 7), FLAT, "ROW"),
        ((1, 1, 7), FLAT, "ROW"),
        ((5, 1), FLAT, "COLUMN"),
        ((1, 5, 1), FLAT, "COLUMN"),
        ((5, 7), FLAT, "MATRIX"),
        ((1, 5, 7), FLAT, "MATRIX"),
        ((6,), SQUARE, "ROW"),
        ((1, 6), SQUARE, "ROW"),
        ((6, 1), SQUARE, "COLUMN"),
        ((6, 6), SQUARE, "MATRIX"),
        ((3, 1, 7), BATCHED, "BATCH_ROW"),
        ((3, 5, 1), BATCHED, "BATCH_COLUMN"),
        ((3, 1, 1), BATCHED, "BATCH"),
        ((1, 5, 7), BATCHED, "MATRIX"),
        ((5, 7), BATCHED, "MATRIX"),
        ((5, 1), BATCHED, "COLUMN"),
        ((7,), BATCHED, "ROW"),
        ((3, 5, 7), BATCHED, "BATCH_MATRIX"),
        ((1,), BATCHED, "SCALAR"),
    ],
)
def test_shapes(shape: tuple[int, ...], problem: Problem, expected: str) -> None:
    assert kind_of(shape, problem) == expected


@pytest.mark.parametrize(
    "sizes", [(2, 3, 5), (2, 4, 4), (3, 3, 3), (2, 1, 5), (2, 3, 1), (0, 3, 5), (2, 0, 5), (2, 3, 0)]
)
@pytest.mark.parametrize("rank", [2, 3])
def test_every_shape_agrees_with_torch(sizes: tuple[int, int, int], rank: int) -> None:
    l, m, n = sizes  # noqa: E741
    problem = Problem(1 if rank == 2 else l, m, n, rank)
    full = (problem.l, m, n)
    for length in range(4):
        for shape in itertools.product({0, 1, 2, 3, 4, 5}, repeat=length):
            try:
                accepted = torch.broadcast_shapes(shape, full) == full
            except RuntimeError:
                accepted = False
            column = length == 1 and shape[0] == m != n and shape[0] != 1
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                if not accepted and not column:
                    with pytest.raises(OperandError, match="'x'"):
                        broadcast_of("x", shape, packed(shape), problem)
                    continue
                found = broadcast_of("x", shape, packed(shape), problem)
            assert bool(caught) == column
            if 0 in full or column:
                continue
            data = torch.arange(torch.Size(shape).numel()).reshape(shape).expand(full)
            for axis, varies in enumerate(found.value):
                if full[axis] > 1:
                    assert varies == bool((data != data.select(axis, 0).unsqueeze(axis)).any()), (shape, full)


def test_expanded_views_vary_as_what_they_were_expanded_from() -> None:
    row = torch.arange(7.0).expand(5, 7)
    column = torch.arange(5.0).view(5, 1).expand(5, 7)
    one = torch.zeros(()).expand(5, 7)
    assert [kind_of(tuple(t.shape), FLAT, t.stride()) for t in (row, column, one)] == ["ROW", "COLUMN", "SCALAR"]
    batch = torch.zeros(3, 1, 1).expand(3, 5, 7)
    assert kind_of((3, 5, 7), BATCHED, batch.stride()) == "BATCH"
    assert kind_of((7,), FLAT, (0,)) == "SCALAR"


def test_strides_of_size_one_dimensions_are_ignored() -> None:
    assert kind_of((1, 7), FLAT, (12345, 1)) == kind_of((1, 7), FLAT, (0, 1)) == "ROW"
    assert kind_of((5, 1), FLAT, (1, 0)) == kind_of((5, 1), FLAT, (1, 2**40)) == "COLUMN"
    assert kind_of((1, 1), FLAT, (0, 99)) == "SCALAR"


def test_a_vector_of_length_m_is_a_column_and_warns() -> None:
    with pytest.warns(BroadcastWarning, match=r"'x' of shape \(5,\).*\(5, 1\)") as caught:
        assert broadcast_of("x", (5,), (1,), FLAT) is Broadcast.COLUMN
    assert caught[0].filename == __file__
    with pytest.warns(BroadcastWarning):
        assert broadcast_of("x", (5,), (3,), BATCHED) is Broadcast.COLUMN


def test_refusals_name_the_operand_and_both_shapes() -> None:
    with pytest.raises(OperandError) as caught:
        broadcast_of("bias", (4, 7), (7, 1), FLAT)
    assert "'bias'" in str(caught.value)
    assert "(4, 7)" in str(caught.value)
    assert "(1, 5, 7)" in str(caught.value)
    with pytest.raises(OperandError, match="4 dimensions"):
        broadcast_of("bias", (1, 3, 5, 7), (105, 35, 7, 1), BATCHED)
    with pytest.raises(OperandError):
        broadcast_of("bias", (3, 5, 7), (35, 7, 1), FLAT)


def test_halved_operands_have_half_the_columns() -> None:
    problem = Problem(1, 4, 10)
    assert broadcast_of("x", (5,), (1,), problem, halved=True) is Broadcast.ROW
    assert broadcast_of("x", (4, 5), (5, 1), problem, halved=True) is Broadcast.MATRIX
    for shape in ((10,), (4, 10)):
        with pytest.raises(OperandError, match="N/2"):
            broadcast_of("x", shape, packed(shape), problem, halved=True)
    with pytest.raises(OperandError, match="N/2"):  # M == N: a vector (N,) is a row of N, never a column
        broadcast_of("x", (6,), (1,), SQUARE, halved=True)
    with pytest.raises(OperandError, match="pairs of adjacent columns"):
        broadcast_of("x", (4, 3), (3, 1), FLAT, halved=True)


# --- outputs ----------------------------------------------------------------------------------------------------------


def test_elementwise_outputs_are_whole() -> None:
    check_output("D", (5, 7), FLAT)
    check_output("D", (1, 5, 7), FLAT)
    check_output("D", (3, 5, 7), BATCHED)
    check_output("D", (5, 7), Problem(1, 5, 7, rank=3))
    check_output("D", (5, 3), Problem(1, 5, 6), halved=True)
    for shape, problem in (((5, 1), FLAT), ((7,), FLAT), ((7, 5), FLAT), ((5, 7), BATCHED), ((1, 5, 7), BATCHED)):
        with pytest.raises(OperandError, match="'D' has shape"):
            check_output("D", shape, problem)
    with pytest.raises(OperandError, match=r"\(5, 3\)"):
        check_output("D", (5, 6), Problem(1, 5, 6), halved=True)


# --- reductions -------------------------------------------------------------------------------------------------------


def axes(call: str, shape: tuple[int, ...], problem: Problem, halved: bool = False) -> str:
    graph = parse(f"def epi(accum): D = accum; s = {call}; return D, s")
    found = reduction_axes("s", graph.reductions["s"], shape, problem, halved)
    return "".join(name for name, folded in zip("lmn", found, strict=True) if folded)


@pytest.mark.parametrize(
    ("call", "shape", "problem", "expected"),
    [
        ("sum(accum)", (1,), FLAT, "lmn"),
        ("sum(accum)", (), FLAT, "lmn"),
        ("max(accum)", (1, 1), FLAT, "lmn"),
        ("min(accum)", (1,), BATCHED, "lmn"),
        ("mean(accum)", (3,), BATCHED, "mn"),
        ("mean(accum)", (3, 1, 1), BATCHED, "mn"),
        ("sum(accum, dim=0)", (7,), FLAT, "m"),
        ("sum(accum, dim=0)", (1, 7), FLAT, "m"),
        ("sum(accum, dim=1)", (5,), FLAT, "n"),
        ("sum(accum, dim=1)", (5, 1), FLAT, "n"),
        ("sum(accum, dim=-1)", (5, 1), FLAT, "n"),
        ("sum(accum, dim=-2)", (7,), FLAT, "m"),
        ("max(accum, dim=[0])", (7,), FLAT, "m"),
        ("amax(accum, dim=(0, 1))", (1,), FLAT, "mn"),
        ("amax(accum, dim=(-1, -2))", (), FLAT, "mn"),
        ("sum(accum, dim=0)", (5, 7), BATCHED, "l"),
        ("sum(accum, dim=1)", (3, 7), BATCHED, "m"),
        ("sum(accum, dim=-1)", (3, 5, 1), BATCHED, "n"),
        ("sum(accum, dim=(0, 2))", (5,), BATCHED, "ln"),
        ("sum(accum, dim=(0, 2))", (1, 5, 1), BATCHED, "ln"),
        ("sum(accum, dim=(1, 2))", (3,), BATCHED, "mn"),
        ("sum(accum, dim=1, keepdim=True)", (5, 1), FLAT, "n"),
        ("sum(accum, dim=1, keepdim=False)", (5,), FLAT, "n"),
    ],
)
def test_axes(call: str, shape: tuple[int, ...], problem: Problem, expected: str) -> None:
    assert axes(call, shape, problem) == expected


@pytest.mark.parametrize(
    ("call", "shape", "problem"),
    [
        ("sum(accum, dim=1)", (1, 7), FLAT),
        ("sum(accum, dim=1)", (7,), FLAT),
        ("sum(accum, dim=0)", (5,), FLAT),
        ("sum(accum)", (5,), FLAT),
        ("sum(accum)", (5, 7), FLAT),
        ("sum(accum)", (7,), BATCHED),
        ("sum(accum, dim=2)", (5,), FLAT),
        ("sum(accum, dim=-3)", (5,), FLAT),
        ("sum(accum, dim=(1, -1))", (5,), FLAT),
        ("sum(accum, dim=1, keepdim=True)", (5,), FLAT),
        ("sum(accum, dim=1, keepdim=False)", (5, 1), FLAT),
        ("sum(accum, dim=0)", (7,), BATCHED),
        ("sum(accum, dim=(1, 2))", (1,), BATCHED),
    ],
)
def test_dim_and_destination_that_disagree(call: str, shape: tuple[int, ...], problem: Problem) -> None:
    with pytest.raises(OperandError) as caught:
        axes(call, shape, problem)
    assert "^" in str(caught.value)
    assert "'s'" in caught.value.sentence or "dim=" in caught.value.sentence


def test_axes_of_a_square_problem_follow_dim_not_the_shape() -> None:
    assert axes("sum(accum, dim=0)", (6,), SQUARE) == "m"
    assert axes("sum(accum, dim=1)", (6,), SQUARE) == "n"
    assert axes("sum(accum, dim=1)", (4,), Problem(1, 4, 8), halved=True) == "n"
    assert axes("sum(accum, dim=0)", (4,), Problem(1, 5, 8), halved=True) == "m"


def test_reductions_of_what_does_not_vary_everywhere() -> None:
    graph = parse("def epi(accum, x): s = sum(x * 2.0); D = accum; return D, s")
    check_reductions(graph, {"x": Broadcast.MATRIX}, FLAT)
    check_reductions(graph, {"x": Broadcast.BATCH_MATRIX}, BATCHED)
    for broadcast, problem in ((Broadcast.ROW, FLAT), (Broadcast.SCALAR, FLAT), (Broadcast.MATRIX, BATCHED)):
        with pytest.raises(OperandError, match="does not vary"):
            check_reductions(graph, {"x": broadcast}, problem)
    with pytest.raises(OperandError, match="does not vary") as caught:
        types_of(graph, x="f32 row")
    assert "sum(x * 2.0)" in str(caught.value)
    check_reductions(parse("def epi(accum, x): return sum(accum * x)"), {"x": Broadcast.SCALAR}, BATCHED)


# --- types ------------------------------------------------------------------------------------------------------------


def types_of(graph: object, accum: str = "f32", **operands: str) -> dict[str, str]:
    specs = {}
    for name, text in operands.items():
        dtype, kind = text.split()
        access = Access.ARGUMENT if kind == "argument" else Access.MEMORY
        broadcast = Broadcast.SCALAR if kind == "argument" else Broadcast[kind.upper()]
        specs[name] = OperandSpec(access, dtypes.of(dtype), broadcast)
    graph = parse(graph) if isinstance(graph, str) else graph
    found = infer.infer(graph, dtypes.of(accum), specs)
    return {name: f"{found[i].dtype.short} {found[i].broadcast.name.lower()}" for name, i in graph.stores.items()}


@pytest.mark.parametrize(
    ("body", "accum", "operands", "dtype"),
    [
        ("accum", "f32", {}, "f32"),
        ("accum", "f16", {}, "f32"),
        ("accum", "f64", {}, "f64"),
        ("accum", "i32", {}, "i32"),
        ("accum + 1", "i32", {}, "i32"),
        ("accum + 1.0", "i32", {}, "f32"),
        ("accum + 1", "f32", {}, "f32"),
        ("accum / 2", "i32", {}, "f32"),
        ("accum + x", "i32", {"x": "i8 row"}, "i32"),
        ("accum + x", "i32", {"x": "u8 row"}, "i32"),
        ("accum + x", "i32", {"x": "i16 matrix"}, "i32"),
        ("accum + x", "i32", {"x": "i32 matrix"}, "i32"),
        ("accum + x", "i32", {"x": "b1 row"}, "i32"),
        ("accum + x", "i32", {"x": "i32 argument"}, "i32"),
        ("accum + x", "i32", {"x": "bf16 row"}, "f32"),
        ("accum + x", "f32", {"x": "i32 row"}, "f32"),
        ("accum + x", "f32", {"x": "b1 row"}, "f32"),
        ("accum + x", "f64", {"x": "f32 row"}, "f64"),
        ("accum + x", "f64", {"x": "f64 row"}, "f64"),
        ("accum + x", "f32", {"x": "f64 argument"}, "f32"),
        ("accum + x", "f32", {"x": "e4m3 row"}, "f32"),
        ("relu(accum)", "i32", {}, "i32"),
        ("maximum(accum, 0)", "i32", {}, "i32"),
        ("sigmoid(accum)", "i32", {}, "f32"),
        ("exp(accum)", "f64", {}, "f64"),
        ("where(x, accum, 0)", "i32", {"x": "b1 matrix"}, "i32"),
        ("where(x > 0.5, accum, 0)", "i32", {"x": "f32 matrix"}, "i32"),
        ("where(accum > 0, 1, 2.0)", "i32", {}, "f32"),
        ("cast(accum, 'int8')", "f32", {}, "i32"),
        ("cast(accum, 'float16')", "f32", {}, "f32"),
        ("cast(accum, 'float16')", "f64", {}, "f64"),
        ("x", "f32", {"x": "b1 matrix"}, "b1"),
    ],
)
def test_dtypes(body: str, accum: str, operands: dict[str, str], dtype: str) -> None:
    text = f"def epi({', '.join(['accum', *operands])}): D = {body}; return D"
    assert types_of(text, accum, **operands)["D"].split()[0] == dtype


@pytest.mark.parametrize(
    ("body", "accum", "operands", "reason"),
    [
        ("accum + x", "f32", {"x": "i64 row"}, "int64"),
        ("accum + x", "f64", {"x": "i64 row"}, "int64"),
        ("accum + x", "f32", {"x": "f64 row"}, "float64"),
        ("accum + x", "i32", {"x": "f64 row"}, "float64"),
        ("accum + 2147483648", "i32", {}, "beyond int32"),
        ("cast(accum, 'int64')", "f32", {}, "wider"),
        ("cast(accum, 'float64')", "f32", {}, "wider"),
    ],
)
def test_dtypes_that_are_refused(body: str, accum: str, operands: dict[str, str], reason: str) -> None:
    text = f"def epi({', '.join(['accum', *operands])}): D = {body}; return D"
    with pytest.raises(OperandError, match=reason) as caught:
        types_of(text, accum, **operands)
    assert "^" in str(caught.value) or "x" in caught.value.sentence
    assert caught.value.hint


def test_a_large_integer_literal_is_a_float_in_float_arithmetic() -> None:
    assert types_of("def epi(accum): return accum + 2147483648")["D"] == "f32 batch_matrix"
    assert types_of("def epi(accum): return accum + 2147483647", "i32")["D"] == "i32 batch_matrix"


def test_broadcasts_join() -> None:
    text = "def epi(accum, r, c): D = r * c; E = r + 1.0; F = accum; return D, E, F"
    assert types_of(text, r="f32 row", c="f32 column") == {
        "D": "f32 matrix",
        "E": "f32 row",
        "F": "f32 batch_matrix",
    }


# --- halved columns ---------------------------------------------------------------------------------------------------


def halved(text: str) -> set[str]:
    graph = parse(text)
    return {graph.nodes[i].name for i in infer.halved_nodes(graph)} - {""}


def test_halved_columns_spread_over_what_is_combined_with_them() -> None:
    assert halved("def epi(accum, b): D = relu(accum + b); return D") == set()
    assert halved("def epi(accum, b, c): D = swiglu(accum + b) * c; F = accum; return D, F") == {"c", "D"}
    assert halved("def epi(accum, c): t = c * 2.0; D = swiglu(accum) * t; F = t; return D, F") == {"c", "D", "F"}
    assert halved("def epi(accum, c): D = swiglu(c); return D") == {"D"}
    assert halved("def epi(accum): D = swiglu(accum); s = sum(D, dim=1); return D, s") == {"D", "s"}


def test_an_operand_of_both_widths_must_not_vary_along_the_columns() -> None:
    text = "def epi(accum, c): D = swiglu(accum * c) * c; return D"
    assert halved(text) == {"D"}
    assert types_of(text, c="f32 column")["D"] == "f32 batch_matrix"
    assert types_of(text, c="f32 scalar")["D"] == "f32 batch_matrix"
    with pytest.raises(OperandError, match="N columns with one of N/2"):
        types_of(text, c="f32 row")


def test_widths_that_disagree() -> None:
    with pytest.raises(OperandError, match="N columns with one of N/2") as caught:
        halved("def epi(accum): D = swiglu(accum) + accum; return D")
    assert "^" in str(caught.value)
    with pytest.raises(OperandError, match="N/2 columns already"):
        halved("def epi(accum): D = swiglu(swiglu(accum)); return D")
