# SPDX-License-Identifier: Apache-2.0
"""Less of the same: dead nodes go, equal nodes are shared, and what folds without changing a bit is folded.

What changes a bit stays: ``0 * x`` (NaN), ``x + 0.0`` (-0.0), any re-association.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from epifuse.fusion.ir.infer import TypedBuilder
from epifuse.fusion.ir.node import Kind, Node
from epifuse.fusion.passes.program import Context, Program


def simplify(program: Program, context: Context) -> Program:
    """Keep what a store depends on, each thing once."""
    nodes = program.nodes
    live = bytearray(len(nodes))
    for index in range(len(nodes) - 1, -1, -1):
        node = nodes[index]
        if live[index] or node.kind is Kind.STORE:
            live[index] = 1
            for i in node.inputs:
                if i >= 0:
                    live[i] = 1
    if program.types and all(live):
        return program  # a typed program comes out of a builder, which shares equal nodes already
    builder = TypedBuilder(context.typing)
    new: list[int] = []
    for index, node in enumerate(nodes):
        new.append(builder.add(moved(node, new)) if live[index] else -1)
    return Program.of(builder)


def moved(node: Node, new: list[int]) -> Node:
    """The node with its inputs renumbered: input ``i`` becomes ``new[i]``, an absent one stays absent."""
    inputs = tuple([new[i] if i >= 0 else -1 for i in node.inputs])
    if inputs == node.inputs:
        return node
    return Node(node.kind, node.op, inputs, node.attributes, node.name, node.place)


def fold(program: Program, context: Context) -> Program:
    """Replace operations whose result is known, bit for bit, without running them."""
    builder = TypedBuilder(context.typing)
    new: list[int] = []
    for old in program.nodes:
        node = moved(old, new)
        index = _folded(builder, node) if node.kind is Kind.COMPUTE else None
        new.append(builder.add(node) if index is None else index)
    return simplify(Program.of(builder), context)


def _folded(builder: TypedBuilder, node: Node) -> int | None:
    rule = _IDENTITIES.get(node.op)
    index = rule(builder, node) if rule is not None else None
    if index is None and node.op in _EXACT:
        index = _evaluated(builder, node)
    return index


# --- identities -------------------------------------------------------------------------------------------------------


def _is(builder: TypedBuilder, index: int, texts: Iterable[str]) -> bool:
    node = builder.nodes[index]
    return node.kind is Kind.CONSTANT and node.literal.text in texts


_ONE = ("1", (1.0).hex())
_ADDS_NOTHING = ("0", (-0.0).hex())
_TAKES_NOTHING = ("0", (0.0).hex())


def _mul(builder: TypedBuilder, node: Node) -> int | None:
    a, b = node.inputs
    if _is(builder, b, _ONE):
        return a
    return b if _is(builder, a, _ONE) else None


def _div(builder: TypedBuilder, node: Node) -> int | None:
    return node.inputs[0] if _is(builder, node.inputs[1], _ONE) else None


def _add(builder: TypedBuilder, node: Node) -> int | None:
    # x + -0.0 is x for every x; x + 0.0 is not, for x = -0.0. Integers have one zero.
    a, b = node.inputs
    if _is(builder, b, _ADDS_NOTHING):
        return a
    return b if _is(builder, a, _ADDS_NOTHING) else None


def _sub(builder: TypedBuilder, node: Node) -> int | None:
    return node.inputs[0] if _is(builder, node.inputs[1], _TAKES_NOTHING) else None


def _neg(builder: TypedBuilder, node: Node) -> int | None:
    inner = builder.nodes[node.inputs[0]]
    return inner.inputs[0] if inner.op == "neg" else None


def _abs(builder: TypedBuilder, node: Node) -> int | None:
    return node.inputs[0] if builder.nodes[node.inputs[0]].op == "abs" else None


def _cast(builder: TypedBuilder, node: Node) -> int | None:
    """A cast to the dtype that the value was cast to, or loaded in, already."""
    source = node.inputs[0]
    inner = builder.nodes[source]
    target = node.attribute("dtype")
    if inner.op == "cast" and inner.attributes == node.attributes:
        return source
    if inner.kind is Kind.LOAD and builder.typing.operands[inner.name].dtype is target:
        return source
    if inner.kind is Kind.ACCUM and builder.typing.accumulator_dtype is target:
        return source
    return None


def _where(builder: TypedBuilder, node: Node) -> int | None:
    condition, yes, no = node.inputs
    test = builder.nodes[condition]
    never = test.op in ("less", "greater") and test.inputs[0] == test.inputs[1]  # for NaN as well
    return no if yes == no or never else None


def _reciprocal(builder: TypedBuilder, node: Node) -> int | None:
    return node.inputs[0] if _is(builder, node.inputs[0], _ONE) else None


_IDENTITIES: dict[str, Callable[[TypedBuilder, Node], int | None]] = {
    "mul": _mul,
    "div": _div,
    "add": _add,
    "sub": _sub,
    "neg": _neg,
    "abs": _abs,
    "cast": _cast,
    "where": _where,
    "reciprocal": _reciprocal,
}

# --- constants --------------------------------------------------------------------------------------------------------

_EXACT: dict[str, Callable[..., object]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "reciprocal": lambda x: np.divide(type(x)(1), x),
    "neg": np.negative,
    "abs": np.abs,
    "sqrt": np.sqrt,
    "floor": np.floor,
}
"""Primitives that IEEE 754 defines to the last bit: folding them gives what every backend would compute."""


def _evaluated(builder: TypedBuilder, node: Node) -> int | None:
    literals = []
    for i in node.inputs:
        if builder.nodes[i].kind is not Kind.CONSTANT:
            return None
        literals.append(builder.nodes[i].literal)
    dtype = builder.types[node.inputs[0]].dtype
    if dtype.is_integer:
        exact = _EXACT[node.op](*[np.int64(literal.value) for literal in literals])
        value = int(exact)  # type: ignore[call-overload]
        return builder.constant(value, node.place) if dtype.lowest <= value <= dtype.highest else None
    number = np.dtype(dtype.name).type
    with np.errstate(all="ignore"):
        return builder.constant(float(_EXACT[node.op](*[number(x.value) for x in literals])), node.place)  # type: ignore
