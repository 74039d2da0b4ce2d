# SPDX-License-Identifier: Apache-2.0
"""Random straight-line programs: what the graph computes is what Python computes with the same text, bit for bit."""

import linecache

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from epifuse.fusion import activation
from epifuse.fusion.frontend import parse
from epifuse.fusion.ir.graph import Graph
from epifuse.fusion.ir.node import Kind, Literal
from epifuse.fusion.vocabulary import table

PARAMETERS = ("accum", "bias", "scale")
UNARY = ("relu", "tanh", "gelu", "abs", "floor", "square", "torch.sigmoid")
BINARY = ("maximum", "minimum", "torch.mul")
COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")
numbers = st.sampled_from(["0.5", "2.0", "-1.5", "3", "1e-3", "(1 / 3)", "(2 ** 3)", "-0.0", "(2.0 - 0.25)"])


@st.composite
def expressions(draw: st.DrawFn, names: tuple[str, ...], depth: int = 3) -> str:
    """A tensor expression over ``names``."""
    if depth == 0:
        return draw(st.sampled_from(names))
    inner = expressions(names, depth - 1)
    kind = draw(st.integers(0, 8))
    if kind == 0:
        return draw(st.sampled_from(names))
    if kind == 1:
        left, sign, right = draw(inner), draw(st.sampled_from("+-*/")), draw(st.one_of(inner, numbers))
        # Without parentheses `x + 1.5 / y` comes of it, and torch takes a number by a tensor for 1.5 * (1 / y).
        return f"({left}) / {right}" if sign == "/" else f"{left} {sign} {right}"
    if kind == 2:
        return f"({draw(numbers)} {draw(st.sampled_from('+-*'))} ({draw(inner)}))"
    if kind == 3:
        return f"{draw(st.sampled_from(UNARY))}({draw(inner)})"
    if kind == 4:
        return f"{draw(st.sampled_from(BINARY))}({draw(inner)}, {draw(inner)})"
    if kind == 5:
        condition = f"{draw(inner)} {draw(st.sampled_from(COMPARISONS))} ({draw(inner)})"
        return f"where({condition}, {draw(inner)}, {draw(inner)})"
    if kind == 6:
        return f"-{draw(st.sampled_from(names))} ** {draw(st.sampled_from(['2', '3', '1.0', '(1 + 1)']))}"
    if kind == 7:
        return f"({draw(inner)}).{draw(st.sampled_from(['relu', 'sin', 'neg']))}()"
    return f"clamp({draw(inner)}, min={draw(numbers)}, max={draw(inner)})"


@st.composite
def programs(draw: st.DrawFn) -> str:
    """The text of a def with a few assignments that returns D and another output."""
    names = PARAMETERS
    lines = [f"def epi({', '.join(PARAMETERS)}):"]
    for i in range(draw(st.integers(1, 6))):
        value = expressions(names)
        form = draw(st.integers(0, 3))
        if form == 0:
            lines.append(f"    t{i}, u{i} = {draw(value)}, {draw(value)}")
            names = (*names, f"t{i}", f"u{i}")
        elif form == 1:
            lines.append(f"    t{i} = u{i} = {draw(value)}")
            names = (*names, f"t{i}", f"u{i}")
        else:
            lines.append(f"    t{i} = {draw(value)}")
            names = (*names, f"t{i}")
    lines.append(f"    D = {draw(expressions(names))}")
    lines.append(f"    return D, {names[-1]}")
    return "\n".join(lines) + "\n"


def evaluate(graph: Graph, operands: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    """The graph's outputs, one row of the vocabulary after the other."""
    values: list = []
    outputs = []
    for node in graph.nodes:
        if node.kind in (Kind.ACCUM, Kind.LOAD):
            values.append(operands[node.name or "accum"])
        elif node.kind is Kind.CONSTANT:
            values.append(node.literal.value)
        elif node.kind is Kind.STORE:
            values.append(None)
            outputs.append(values[node.inputs[0]])
        else:
            inputs = [values[i] if i >= 0 else None for i in node.inputs]
            attributes = {k: v.value if isinstance(v, Literal) else v for k, v in node.attributes}
            row = table.lookup(node.op)
            given = dict(attributes)
            given |= zip((p.name for p in row.parameters if p.name not in attributes), inputs, strict=True)
            values.append(row(**given))
    return outputs


def bits(value: torch.Tensor) -> bytes:
    """The value's memory, with one NaN for all."""
    return torch.where(torch.isnan(value), torch.nan, value).contiguous().numpy().tobytes()


@settings(max_examples=150, deadline=None)
@given(programs(), st.integers(0, 3))
def test_graph_equals_python(text, seed):
    generator = torch.Generator().manual_seed(seed)
    operands = {name: torch.randn(3, 5, dtype=torch.float64, generator=generator) for name in PARAMETERS}
    operands["bias"][0, :3] = torch.tensor([0.0, -0.0, torch.inf])
    scope = {name: getattr(activation, name) for name in ("relu", "tanh", "gelu", "abs", "floor", "square", "clamp")}
    scope |= {name: getattr(activation, name) for name in ("maximum", "minimum", "where")}
    scope["torch"] = torch
    name = "<a random program>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    exec(compile(text, name, "exec"), scope)
    function = scope["epi"]
    wanted = [bits(value) for value in function(**operands)]
    from_text, from_function = parse(text), parse(function)
    assert from_text == from_function
    assert hash(from_text) == hash(from_function)
    assert from_text.inputs == PARAMETERS[1:]
    assert [bits(value) for value in evaluate(from_text, operands)] == wanted
