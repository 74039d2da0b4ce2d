# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: PLW0108 - the lambdas are what is tested
"""What names mean: closures and globals, looked at anew at each call."""

import enum
import linecache
import math
import types

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import epifuse
from epifuse.errors import EpilogueSyntaxError, UnknownNameError
from epifuse.fusion import activation, frontend
from epifuse.fusion.activation import gelu, relu
from epifuse.fusion.frontend import parse
from epifuse.fusion.ir.graph import Graph
from epifuse.fusion.ir.node import Kind, Node
from epifuse.fusion.vocabulary import primitive, table
from epifuse.fusion.vocabulary.table import Level, Operation, Parameter

GLOBAL = 2.0
SIGMOID = torch.sigmoid
WEIGHT = torch.ones(3)
SCALAR = torch.tensor(2.0)
SETTINGS = types.SimpleNamespace(alpha=2.0)


def ops(graph: Graph) -> list[str]:
    """The operations of a graph in order."""
    return [node.op for node in graph.nodes if node.op]


def constants(graph: Graph) -> list[int | float]:
    """The numbers of a graph in order."""
    return [node.literal.value for node in graph.nodes if node.kind is Kind.CONSTANT]


def only(graph: Graph, op: str) -> Node:
    """The one node of an operation."""
    (node,) = (n for n in graph.nodes if n.op == op)
    return node


def make(k):
    """An epilogue with ``k`` in its closure."""

    def epi(accum):
        D = accum * k
        return D

    return epi


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (2.0, 2.0),
        (2, 2),
        (-0.0, -0.0),
        (math.inf, math.inf),
        (np.float32(0.1), float(np.float32(0.1))),
        (np.float64(0.1), 0.1),
        (np.float16(0.5), 0.5),
        (np.int64(7), 7),
        (np.uint8(7), 7),
        (enum.IntEnum("Size", {"BIG": 9}).BIG, 9),
    ],
)
def test_numbers_of_a_closure(value, expected):
    (found,) = constants(parse(make(value)))
    assert type(found) is type(expected)
    assert repr(found) == repr(expected)


def test_nan_of_a_closure():
    (found,) = constants(parse(make(math.nan)))
    assert math.isnan(found)


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (True, "'k' is True, which cannot be a value of an epilogue."),
        (np.True_, "'k' is a bool object."),
        ("2.0", "'k' is '2.0', which cannot be a value of an epilogue."),
        (None, "'k' is None, which cannot be a value of an epilogue."),
        (1j, "'k' is a complex object."),
        (torch.tensor(2.0), "'k' is a tensor of shape () from outside of the epilogue."),
        (torch.ones(1), "'k' is a tensor of shape (1,) from outside of the epilogue."),
        (torch.ones(3, 4), "'k' is a tensor of shape (3, 4) from outside of the epilogue."),
        (np.ones(3), "'k' is a tensor of shape (3,) from outside of the epilogue."),
        ([2.0], "'k' is a list object."),
        ({}, "'k' is a dict object."),
        (torch.float16, "'k' is a dtype (float16), which cannot be a value of an epilogue."),
        (math, "'k' is the module math."),
        (float, "'k' is the class float."),
        (relu, "'k' is an operation, which cannot be a value of an epilogue."),
        (make, "'k' is a function, which cannot be a value of an epilogue."),
        (2**2000, "'k' is an integer of more than 1024 bits."),
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_that_are_no_numbers(value, sentence):
    with pytest.raises(EpilogueSyntaxError) as caught:
        parse(make(value))
    if isinstance(value, np.bool_):
        assert caught.value.sentence.startswith("'k' is a bool")
    else:
        assert caught.value.sentence == sentence
    assert caught.value.text[caught.value.offset - 1 : caught.value.end_offset - 1] == "k"
    if isinstance(value, torch.Tensor):
        assert "Pass it as a parameter" in str(caught.value)


def test_closures_are_never_stale():
    first, second = make(2.0), make(3.0)
    assert first.__code__ is second.__code__
    assert [constants(parse(f)) for f in (first, second, first)] == [[2.0], [3.0], [2.0]]
    k = 1.0

    def epi(accum):
        D = accum * k
        return D

    assert constants(parse(epi)) == [1.0]
    k = 5.0
    assert constants(parse(epi)) == [5.0]
    k = 5
    assert [type(c) for c in constants(parse(epi))] == [int]
    k = 0.0
    assert repr(constants(parse(epi))) == "[0.0]"
    k = -0.0
    assert repr(constants(parse(epi))) == "[-0.0]"


def test_globals_are_never_stale(monkeypatch):
    def epi(accum):
        D = SIGMOID(accum * GLOBAL)
        return D

    assert constants(parse(epi)) == [2.0]
    monkeypatch.setitem(globals(), "GLOBAL", 4.0)
    assert constants(parse(epi)) == [4.0]
    monkeypatch.setitem(globals(), "SIGMOID", torch.tanh)
    assert ops(parse(epi)) == ["mul", "tanh"]
    monkeypatch.setitem(globals(), "GLOBAL", torch.ones(2))
    with pytest.raises(EpilogueSyntaxError, match="Pass it as a parameter"):
        parse(epi)


def test_a_function_seen_before_gives_the_same_graph():
    assert parse(make(2.5)) is parse(make(2.5))
    assert parse("def epi(accum): return relu(accum)") is parse("def epi(accum): return relu(accum)")


def test_defaults_are_part_of_the_key():
    def build(value):
        def epi(accum, alpha=value, *, beta=value + 1):
            D = accum * alpha + beta
            return D

        return epi

    for value in (2.0, 3.0, 2.0):
        graph = parse(build(value))
        assert [(n, d.value) for n, d in graph.defaults] == [("alpha", value), ("beta", value + 1)]
        assert graph.inputs == ("alpha", "beta")


def test_two_functions_with_the_same_name():
    def one():
        def epi(accum, a, b):
            D = accum * a - b
            return D

        return epi

    def two():
        def epi(accum, b, a):
            D = accum * a - b
            return D

        return epi

    assert parse(one()).inputs == ("a", "b")
    assert parse(two()).inputs == ("b", "a")


@pytest.mark.parametrize(
    "epi",
    [
        lambda accum: relu(accum),
        lambda accum: torch.relu(accum),
        lambda accum: torch.nn.functional.relu(accum),
        lambda accum: F.relu(accum),
        lambda accum: accum.relu(),
        lambda accum: torch.Tensor.relu(accum),
        lambda accum: activation.relu(accum),
        lambda accum: epifuse.fusion.activation.relu(accum),
    ],
)
def test_ways_to_name_an_operation(epi):
    assert ops(parse(epi)) == ["relu"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("torch.relu(accum)", ["relu"]),
        ("F.gelu(accum, approximate='tanh')", ["gelu"]),
        ("nn.functional.silu(accum)", ["silu"]),
        ("torch.nn.functional.silu(accum)", ["silu"]),
        ("accum.tanh().sigmoid()", ["tanh", "sigmoid"]),
        ("(accum + 1.0).relu()", ["add", "relu"]),
        ("accum * math.pi", ["mul"]),
        ("accum * math.sqrt(2.0)", ["mul"]),
        ("accum.to(torch.float16)", ["cast"]),
        ("accum.to(dtype='float16')", ["cast"]),
        ("accum.half()", ["cast"]),
        ("cast(accum, torch.bfloat16)", ["cast"]),
        ("abs(accum)", ["abs"]),
        ("pow(accum, 2)", ["pow"]),
    ],
)
def test_names_that_a_text_knows(text, expected):
    assert ops(parse(f"def epi(accum): return {text}")) == expected


def test_functions_of_math_fold_numbers_as_python_does():
    scale = 2.0
    graph = parse(lambda accum: accum * math.sqrt(scale / math.pi) + math.inf)
    assert constants(graph) == [math.sqrt(2.0 / math.pi), math.inf]
    assert ops(graph) == ["mul", "add"]


def test_builtins_mean_the_vocabulary():
    def epi(accum):
        D = abs(accum)
        s = sum(D, dim=0)
        m = max(D, dim=(1,))
        n = min(pow(D, 3))
        return D, s, m, n

    assert ops(parse(epi)) == ["abs", "sum", "max", "pow", "min"]


def test_a_users_own_function_of_the_same_name_wins():
    def relu(x):
        return x * 7.0

    assert ops(parse(lambda accum: relu(accum))) == ["mul"]


def test_undefined_names_fall_back_to_the_vocabulary():
    def epi(accum):
        D = mish(accum)  # noqa: F821 - the vocabulary's
        return D

    assert ops(parse(epi)) == ["mish"]


def test_flags_and_dimensions_of_a_closure():
    mode, axes, wide = "tanh", [0, 1], torch.float16

    def epi(accum):
        D = cast(gelu(accum, approximate=mode), wide)  # noqa: F821
        s = sum(accum, dim=axes)
        return D, s

    graph = parse(epi)
    assert only(graph, "gelu").attribute("approximate") == "tanh"
    assert only(graph, "sum").attribute("dim") == (0, 1)
    assert only(graph, "cast").attribute("dtype") == torch.float16
    mode = "none"
    axes.pop()
    assert only(parse(epi), "gelu").attribute("approximate") == "none"
    assert only(parse(epi), "sum").attribute("dim") == (0,)


def test_a_new_row_is_known_at_once():
    text = "def epi(accum): return thrown_away(accum)"
    with pytest.raises(UnknownNameError, match="'thrown_away' is not defined."):
        parse(text)
    row = Operation(
        "thrown_away",
        Level.COMPOSITE,
        (Parameter("x"),),
        "Nothing.",
        on_torch=torch.positive,
        on_numpy=np.positive,
        body=lambda x: primitive.neg(primitive.neg(x)),
    )
    table.register(row)
    try:
        assert ops(parse(text)) == ["thrown_away"]
        assert ops(parse(lambda accum: row(accum))) == ["thrown_away"]
    finally:
        table.unregister("thrown_away")
    with pytest.raises(UnknownNameError):
        parse(text)


def test_caches_are_bounded():
    frontend.clear()
    for i in range(2500):
        parse(f"def epi(accum): return accum * {i}.0")
    assert len(frontend.names._templates) <= 1024
    assert len(frontend.parse.__globals__["_graphs"]) <= 2048
    assert constants(parse("def epi(accum): return accum * 7.0")) == [7.0]
    frontend.clear()
    assert len(frontend.names._templates) == 0


def test_a_function_that_died_is_not_taken_for_another():
    seen = []
    for i in range(300):
        scope = {}
        text = f"def epi(accum):\n    D = accum * {i}.0\n    return D\n"
        name = f"<cell {i}>"
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
        exec(compile(text, name, "exec"), scope)
        seen += constants(parse(scope["epi"]))
        del linecache.cache[name], scope
    assert seen == [float(i) for i in range(300)]
