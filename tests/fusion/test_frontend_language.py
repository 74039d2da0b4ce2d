# SPDX-License-Identifier: Apache-2.0
"""The epilogue's language: what is accepted, and into which nodes it turns."""

import math

import pytest
import torch

from epifuse.fusion.frontend import parse
from epifuse.fusion.ir.graph import Graph
from epifuse.fusion.ir.node import Kind, Literal
from epifuse.fusion.vocabulary import table
from epifuse.fusion.vocabulary.table import Level, Role


def program(body: str, parameters: str = "accum, bias, C") -> str:
    """A def with ``body`` as its lines."""
    return f"def epi({parameters}):\n" + "".join(f"    {line}\n" for line in body.split("\n"))


def tree(graph: Graph, name: str = "D") -> str:
    """An output as a nested expression."""

    def show(index: int) -> str:
        if index < 0:
            return "absent"
        node = graph.nodes[index]
        if node.kind is Kind.CONSTANT:
            return repr(node.literal.value)
        inputs = [show(i) for i in node.inputs]
        inputs += [f"{k}={v.value if isinstance(v, Literal) else v!r}" for k, v in node.attributes if v is not None]
        return f"{node.op}({', '.join(inputs)})" if node.op else node.name or node.kind.value

    return show(graph.nodes[graph.stores[name]].inputs[0])


ACCEPTED = {
    "D = accum\nreturn D": "accum",
    "return accum + 1": "add(accum, 1)",
    "D = (accum)\nreturn (D)": "accum",
    "D = accum\nreturn D,": "accum",
    "D = accum - bias * C / 2.0": "sub(accum, div(mul(bias, C), 2.0))",
    "D = -accum": "neg(accum)",
    "D = +accum": "accum",
    "D = - - accum": "neg(neg(accum))",
    "D = -accum ** 2": "neg(pow(accum, exponent=2))",
    "D = accum ** -1": "pow(accum, exponent=-1)",
    "D = accum ** 0.5": "pow(accum, exponent=0.5)",
    "e = 2\nD = accum ** e": "pow(accum, exponent=2)",
    "D = pow(accum, 1 + 2)": "pow(accum, exponent=3)",
    "D = 2.0 * 3.0": "6.0",
    "D = accum * (1 / 3)": f"mul(accum, {1 / 3!r})",
    "D = accum * 1 / 3": "div(mul(accum, 1), 3)",
    "D = 2 ** 10 + accum": "add(1024, accum)",
    "D = accum + -0.0": "add(accum, -0.0)",
    "D = accum + 1e400": "add(accum, inf)",
    "D = accum * math.inf - math.nan": "sub(mul(accum, inf), nan)",
    "k = 2.0\nh = k * k\nD = accum * h": "mul(accum, 4.0)",
    "D = where(accum > 0.0, accum, bias)": "where(greater(accum, 0.0), accum, bias)",
    "c = accum <= bias\nD = where(c, accum, bias)": "where(less_equal(accum, bias), accum, bias)",
    "D = where(C, accum, 0.0)": "where(C, accum, 0.0)",
    "D = where(1 < 2, accum, 0.0)": "where(less(1, 2), accum, 0.0)",
    "D = torch.where(torch.eq(accum, bias), input=C, other=0)": "where(equal(accum, bias), C, 0)",
    "D = where(accum < 0, where(accum != C, C, 1), 2)": "where(less(accum, 0), where(not_equal(accum, C), C, 1), 2)",
    "D = leaky_relu(accum)": "leaky_relu(accum, 0.01)",
    "D = leaky_relu(accum, bias)": "leaky_relu(accum, bias)",
    "D = F.leaky_relu(accum, negative_slope=0.5)": "leaky_relu(accum, 0.5)",
    "D = torch.relu(input=accum)": "relu(accum)",
    "D = clamp(accum, min=0.0)": "clamp(accum, 0.0, absent)",
    "D = accum.clamp(None, bias)": "clamp(accum, absent, bias)",
    "D = gelu(accum)": "gelu(accum, approximate='none')",
    "D = multiply_add(accum, bias, C)": "multiply_add(accum, bias, C)",
    "D = multiply_add(b=bias, c=C, a=accum)": "multiply_add(accum, bias, C)",
    "D = cast(accum, torch.bfloat16) + bias": "add(cast(accum, dtype=bfloat16), bias)",
    "D = accum.float()": "cast(accum, dtype=float32)",
    "D = sum(accum)": "sum(accum)",
    "D = sum(accum, dim=1)": "sum(accum, dim=(1,))",
    "D = sum(accum, dim=[0, -1])": "sum(accum, dim=(0, -1))",
    "D = sum(accum, dim=(1,), keepdim=True)": "sum(accum, dim=(1,), keepdim=True)",
    "D = accum.sum(-1)": "sum(accum, dim=(-1,))",
    "D = accum.sum(axis=0, keepdim=False)": "sum(accum, dim=(0,), keepdim=False)",
    "D = torch.amax(accum, 1)": "amax(accum, dim=(1,))",
    "D = torch.max(accum, 1)": "max(accum, dim=(1,))",
    "D = mean(accum * accum, None)": "mean(mul(accum, accum))",
    "D = max(accum)": "max(accum)",
    "D = F = relu(accum)\nreturn D, F": "relu(accum)",
    "D, F = relu(accum), accum * 2.0": "relu(accum)",
    "(a, (b, D)), c = (accum, (bias, accum + 1)), C": "add(accum, 1)",
    "D: float = relu(accum)": "relu(accum)",
    "D: 'anything'.at_all() = relu(accum)": "relu(accum)",
    "'''A docstring.'''\nD = accum": "accum",
    "D = accum\nE = D * 2.0\nF = E + D\nreturn F, D, E": "accum",
    "compute_0 = accum\nimm_2_0_k0 = bias\nD = compute_0 * imm_2_0_k0": "mul(accum, bias)",
    "E = relu(accum); F = E + bias; t = E + 2.0; D = t + E": "add(add(relu(accum), 2.0), relu(accum))",
}


@pytest.mark.parametrize("body", ACCEPTED)
def test_accepted(body):
    text = body if "return" in body else f"{body}\nreturn D"
    assert tree(parse(program(text))) == ACCEPTED[body]


def test_equal_subexpressions_are_one_node():
    graph = parse(program("D = (accum + bias) * (accum + bias)\nreturn D"))
    assert [n.op for n in graph.nodes if n.op] == ["add", "mul"]


def test_literals_stay_apart():
    graph = parse(program("D = accum + 0.0 + -0.0 + 0 + 1 + 1.0\nreturn D"))
    assert len([n for n in graph.nodes if n.kind is Kind.CONSTANT]) == 5


def test_inputs_outputs_and_defaults():
    graph = parse(
        program("F = accum + alpha\nD = F * 2.0\nreturn F, D, accum, C", "accum, C, /, alpha, beta=2.0, *, g=-3")
    )
    assert graph.inputs == ("C", "alpha", "beta", "g")
    assert graph.outputs == ("F", "D", "accum", "C")
    assert [(n, d.value, d.integer) for n, d in graph.defaults] == [("beta", 2.0, False), ("g", -3, True)]
    assert tree(graph, "accum") == "accum"
    assert tree(graph, "C") == "C"
    assert set(graph.loads) == {"C", "alpha"}


def test_outputs_that_are_inputs():
    graph = parse("def epi(accum, D): F = accum + D; return D, F")
    assert graph.inputs == ("D",)
    assert tree(graph, "D") == "D"


def test_two_reductions():
    graph = parse(program("s = sum(accum, dim=0)\nm = max(accum, dim=1)\nD = accum\nt = s\nreturn D, s, m, t"))
    assert [node.op for node in graph.reductions.values()] == ["sum", "max", "sum"]


@pytest.mark.parametrize("flavor", ["def", "lambda", "text"])
def test_unnamed_value_is_d(flavor):
    def epi(accum, bias):
        return torch.relu(accum + bias)

    chosen = {
        "def": epi,
        "lambda": lambda accum, bias: torch.relu(accum + bias),
        "text": "lambda accum, bias: torch.relu(accum + bias)",
    }
    graph = parse(chosen[flavor])
    assert graph.outputs == ("D",)
    assert tree(graph) == "relu(add(accum, bias))"


def test_lambda_whose_value_is_an_input():
    assert tree(parse("lambda accum: accum")) == "accum"
    assert tree(parse("lambda accum, C: C")) == "C"
    assert parse("lambda accum, D: (D, accum)").outputs == ("D", "accum")


@pytest.mark.parametrize("row", [r for r in table.rows() if r.level is not Level.REDUCTION], ids=lambda row: row.name)
def test_every_row_by_name(row):
    arguments = []
    for parameter in row.parameters:
        if parameter.role is Role.OPERAND:
            condition = row.name == "where" and not arguments
            arguments.append("accum > 0.5" if condition else f"accum * {len(arguments) + 2}.0")
        elif parameter.default is ...:
            arguments.append("3" if parameter.role is Role.NUMBER else "torch.float16")
        elif parameter.role is Role.OPTIONAL:
            arguments.append(f"{parameter.name}=0.5")
    call = f"{row.name}({', '.join(arguments)})"
    graph = parse(
        f"def epi(accum): t = {call}; D = {'where(t, 1.0, 0.0)' if row.result.value == 'bool' else 't'}; return D"
    )
    assert row.name in [n.op for n in graph.nodes]


def test_python_arithmetic_of_numbers_is_exact():
    graph = parse("def epi(accum): return accum * (0.1 + 0.2) + 2 ** -1 + 7 / 2 + (3 - 5)")
    found = [n.literal.value for n in graph.nodes if n.kind is Kind.CONSTANT]
    assert found == [0.1 + 0.2, 2**-1, 7 / 2, -2]
    assert math.copysign(1.0, parse("def epi(accum): return accum * -0.0").nodes[1].literal.value) == -1.0
