# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: PLW0108 - the lambdas are what is tested
"""Plain functions that an epilogue calls: inlined, with their own names looked up in turn."""

import functools
import types

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from epifuse.errors import EpilogueSyntaxError
from epifuse.fusion.activation import relu
from epifuse.fusion.frontend import parse
from epifuse.fusion.ir.graph import Graph
from epifuse.fusion.ir.node import Kind, Node

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


def scaled(x, k=2.0, *, shift):
    """A helper."""
    t = x * k
    return t + shift


def twice(x):
    return scaled(scaled(x, shift=0.5), GLOBAL, shift=1.5)


def split(x):
    low = minimum(x, 0.0)  # noqa: F821
    return low, x - low


def chosen(x, mode="tanh", function=F.silu):
    return function(F.gelu(x, approximate=mode))


def test_inlining():
    def epi(accum, t):
        x = twice(accum * t)
        low, D = split(x)
        return D, low

    graph = parse(epi)
    assert ops(graph) == ["mul", "mul", "add", "mul", "add", "minimum", "sub"]
    assert constants(graph) == [2.0, 0.5, 1.5, 0.0]
    assert graph.inputs == ("t",)
    place = next(n.place for n in graph.nodes if n.op == "minimum")
    assert place.text.strip().startswith("low = minimum(x, 0.0)")


def test_inlined_flags_functions_and_lambdas():
    double = lambda x: x + x  # noqa: E731

    def epi(accum):
        a = chosen(accum)
        b = chosen(accum, "none", function=double)
        D = a + b
        return D

    graph = parse(epi)
    assert ops(graph) == ["gelu", "silu", "gelu", "add", "add"]
    assert [n.attribute("approximate") for n in graph.nodes if n.op == "gelu"] == ["tanh", "none"]


def test_names_of_inlined_functions_do_not_clash():
    def helper(accum, D):
        t = accum - D
        compute_0 = t * 2.0
        return compute_0

    def epi(accum, t, compute_0, imm_2_0_k0):
        D = helper(t, accum) + compute_0 * imm_2_0_k0
        return D

    graph = parse(epi)
    assert ops(graph) == ["sub", "mul", "mul", "add"]
    names = [graph.nodes[i].name or graph.nodes[i].kind.value for i in only(graph, "sub").inputs]
    assert names == ["t", "accum"]


def test_inlined_functions_are_never_stale(monkeypatch):
    bound = [3.0]

    def outer(factor):
        def helper(x):
            return x * factor

        def epi(accum):
            D = helper(accum)
            return D

        return epi

    assert [constants(parse(outer(k))) for k in (3.0, 4.0, 3.0)] == [[3.0], [4.0], [3.0]]

    def epi(accum):
        D = twice(accum)
        return D

    assert constants(parse(epi)) == [2.0, 0.5, 1.5]
    monkeypatch.setitem(globals(), "GLOBAL", 9.0)
    assert constants(parse(epi)) == [2.0, 0.5, 9.0, 1.5]
    monkeypatch.setitem(globals(), "scaled", lambda x, k=1.0, *, shift: x - shift)
    assert ops(parse(epi)) == ["sub", "sub"]
    assert bound == [3.0]


def test_two_closures_of_one_helper_in_one_epilogue():
    def build(factor):
        def helper(x):
            return x * factor

        return helper

    double, triple = build(2.0), build(3.0)

    def epi(accum):
        D = double(accum) + triple(accum) - double(accum)
        return D

    graph = parse(epi)
    assert constants(graph) == [2.0, 3.0]
    assert ops(graph) == ["mul", "mul", "add", "sub"]


def test_errors_in_an_inlined_function_point_into_it():
    def helper(x):
        return x // 2.0

    def epi(accum):
        D = helper(accum + 1.0)
        return D

    with pytest.raises(EpilogueSyntaxError, match="The operator '//' is not part of") as caught:
        parse(epi)
    error = caught.value
    assert error.text.strip() == "return x // 2.0"
    assert error.text[error.offset - 1 : error.end_offset - 1] == "x // 2.0"
    assert error.hint.splitlines()[-1].endswith(": D = helper(accum + 1.0)")


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        ("scaled(accum)", "scaled() lacks its argument 'shift'."),
        ("scaled(accum, 1.0, 2.0, shift=1.0)", "scaled() takes 2 arguments, 3 were given."),
        ("scaled(accum, shift=1.0, other=1.0)", "scaled() has no argument 'other'."),
        ("scaled(accum, x=1.0, shift=1.0)", "scaled() is given 'x' twice."),
        ("split(accum)", "A tuple cannot be the value of a name."),
        ("split(accum) + 1.0", "A tuple or a flag cannot be an operand."),
        ("missing(accum)", "'missing' is not defined."),
        ("np.exp(accum)", "'np.exp' is an ufunc object, not an operation of the vocabulary."),
        (
            "torch.softmax(accum, 1)",
            "'torch.softmax' is the function torch.softmax, not an operation of the vocabulary.",
        ),
        ("torch.nothing(accum)", "'torch.nothing' does not exist."),
        ("SETTINGS.alpha * accum", "'SETTINGS' is a SimpleNamespace object: attributes are read of modules only."),
        ("WEIGHT.relu() * accum", "'WEIGHT' is a tensor of shape (3,) from outside of the epilogue."),
        ("SCALAR * accum", "'SCALAR' is a tensor of shape () from outside of the epilogue."),
        ("partial(accum)", "'partial' is a partial object."),
        ("module(accum)", "'module' is a ReLU object, not an operation of the vocabulary."),
        ("GLOBAL(accum)", "'GLOBAL' is not a function and cannot be called."),
        ("len(accum)", "'len' is the function builtins.len, not an operation of the vocabulary."),
        ("print(accum)", "'print' is the function builtins.print, not an operation of the vocabulary."),
        ("float(accum)", "'float' is the class float."),
        ("recursive(accum)", "'recursive' calls itself: a recursive function cannot be inlined."),
        ("no_source(accum)", "'no_source' cannot be inlined. The source of function 'hidden' is not available"),
    ],
)
def test_what_cannot_be_called(call, sentence, tmp_path):
    path = tmp_path / "module.py"
    path.write_text(f"def epi(accum):\n    D = {call}\n    return D\ndef recursive(x):\n    return recursive(x)\n")
    scope = {"functools": functools, "torch": torch, "np": np, "SETTINGS": SETTINGS, "WEIGHT": WEIGHT, "GLOBAL": 2.0}
    scope |= {"SCALAR": SCALAR, "partial": functools.partial(relu), "module": torch.nn.ReLU()}
    scope |= {"scaled": scaled, "split": split}
    exec("def hidden(x): return x\nno_source = hidden", scope)
    exec(compile(path.read_text(), str(path), "exec"), scope)
    with pytest.raises(EpilogueSyntaxError) as caught:
        parse(scope["epi"])
    assert caught.value.sentence.startswith(sentence)


def test_mutual_recursion_and_deep_chains(tmp_path):
    lines = ["def f0(x):\n    return x + 1.0\n"]
    lines += [f"def f{i}(x):\n    return f{i - 1}(f{i - 1}(x))\n" for i in range(1, 60)]
    lines += ["def a(x):\n    return b(x)\n", "def b(x):\n    return a(x)\n"]
    lines += [
        "def epi20(accum):\n    D = f11(accum)\n    return D\n",
        "def epi59(accum):\n    D = f59(accum)\n    return D\n",
    ]
    lines += ["def epia(accum):\n    D = a(accum)\n    return D\n"]
    path = tmp_path / "deep.py"
    path.write_text("".join(lines))
    scope = {}
    exec(compile(path.read_text(), str(path), "exec"), scope)
    assert ops(parse(scope["epi20"])) == ["add"] * 2048
    with pytest.raises(EpilogueSyntaxError, match="more than 32 calls deep"):
        parse(scope["epi59"])
    with pytest.raises(EpilogueSyntaxError, match="'a' calls itself"):
        parse(scope["epia"])


def test_helpers_that_fan_out_take_linear_time(tmp_path):
    lines = ["def f0(x):\n    return x * 1.0\n", "def g0(x):\n    return x * 1.0\n"]
    for i in range(1, 28):
        lines += [f"def {n}{i}(x):\n    return f{i - 1}(x) + g{i - 1}(x)\n" for n in "fg"]
    lines += ["def epi(accum):\n    D = f27(accum)\n    return D\n"]
    path = tmp_path / "fan.py"
    path.write_text("".join(lines))
    scope = {}
    exec(compile(path.read_text(), str(path), "exec"), scope)
    assert len(ops(parse(scope["epi"]))) == 28
