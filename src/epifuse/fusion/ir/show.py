# SPDX-License-Identifier: Apache-2.0
"""Graphs and plans for human eyes: text, tree, mermaid, SVG."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from epifuse.dtypes import FLOAT32
from epifuse.fusion.ir import draw
from epifuse.fusion.ir.graph import Graph
from epifuse.fusion.ir.node import Attribute, Broadcast, Kind, Literal, Node
from epifuse.fusion.plan import Access, EpiloguePlan, PlanConstant, PlanLoad, Rounding, Route
from epifuse.fusion.vocabulary import table

_DEEPEST = 48
"""Levels of a tree that are drawn; a chain of thousands would be wider than any screen."""


# --- words ------------------------------------------------------------------------------------------------------------


def _spelled(value: Attribute) -> str:
    if isinstance(value, Literal):
        return repr(value.value)
    return repr(value)


def _attributes(node: Node) -> Iterator[str]:
    """The attributes that differ from the row's defaults, as ``name=value``."""
    row = table.find(node.op)
    defaults = {} if row is None else {p.name: p.default for p in row.parameters}
    for name, value in node.attributes:
        plain = value.value if isinstance(value, Literal) else value
        default = defaults.get(name, ...)
        if default is ... or plain != default:
            yield f"{name}={_spelled(value)}"


def label(node: Node) -> str:
    """What a node is, in a few words: ``accum``, ``bias``, ``0.5``, ``gelu approximate='tanh'``, ``D =``."""
    if node.kind is Kind.ACCUM:
        return "accum"
    if node.kind is Kind.LOAD:
        return node.name
    if node.kind is Kind.CONSTANT:
        return repr(node.literal.value)
    if node.kind is Kind.STORE:
        return f"{node.name} ="
    return " ".join((node.op, *_attributes(node)))


# --- graphs as text ---------------------------------------------------------------------------------------------------


def graph_text(graph: Graph) -> str:
    """One line a node, in order: ``%3 = mul %0 %2``; ``-`` stands for an optional operand that is absent."""
    lines = []
    for index, node in enumerate(graph.nodes):
        inputs = [f"%{i}" if i >= 0 else "-" for i in node.inputs]
        if node.kind is Kind.STORE:
            lines.append(f"store {node.name} {inputs[0]}")
        elif node.kind in (Kind.COMPUTE, Kind.REDUCE):
            lines.append(f"%{index} = " + " ".join((node.op, *inputs, *_attributes(node))))
        else:
            word = "" if node.kind is Kind.ACCUM else f"{node.kind.value} "
            lines.append(f"%{index} = {word}{label(node)}")
    return "\n".join(lines)


def graph_tree(graph: Graph) -> str:
    """The DAG as a tree for each output, operands below their user.

    A value that several users share is drawn once, with a mark ``[1]``; other places say ``[1] ... above``.
    """
    nodes = graph.nodes
    users = [0] * len(nodes)
    for node in nodes:
        for i in node.inputs:
            if i >= 0:
                users[i] += 1
    marks: dict[int, int] = {}
    lines: list[str] = []
    todo = [(i, "", "") for i in reversed(range(len(nodes))) if nodes[i].kind is Kind.STORE]
    while todo:
        index, head, tail = todo.pop()
        node = nodes[index]
        inputs = [i for i in node.inputs if i >= 0]
        text = label(node)
        if index in marks:
            lines.append(f"{head}[{marks[index]}] {text}, above")
            continue
        if inputs and users[index] > 1:
            marks[index] = len(marks) + 1
            text = f"[{marks[index]}] {text}"
        lines.append(head + text)
        if len(tail) >= 3 * _DEEPEST and inputs:
            lines.append(f"{tail}└─ ... (deeper than {_DEEPEST} levels)")
            continue
        for position, i in reversed(list(enumerate(inputs))):
            last = position == len(inputs) - 1
            todo.append((i, tail + ("└─ " if last else "├─ "), tail + ("   " if last else "│  ")))
    return "\n".join(lines)


def graph_mermaid(graph: Graph) -> str:
    """The DAG as a mermaid flowchart, for READMEs and notebooks."""
    shapes = {
        Kind.ACCUM: ("([", "])"),
        Kind.LOAD: ("[/", "/]"),
        Kind.CONSTANT: ("(", ")"),
        Kind.COMPUTE: ("[", "]"),
        Kind.REDUCE: ("{{", "}}"),
        Kind.STORE: ("[[", "]]"),
    }
    lines = ["flowchart TD"]
    for index, node in enumerate(graph.nodes):
        left, right = shapes[node.kind]
        text = node.name if node.kind is Kind.STORE else label(node).replace('"', "#quot;")
        lines.append(f'    n{index}{left}"{text}"{right}')
    for index, node in enumerate(graph.nodes):
        lines += [f"    n{i} --> n{index}" for i in node.inputs if i >= 0]
    return "\n".join(lines)


# --- graphs as pictures -----------------------------------------------------------------------------------------------


def graph_svg(graph: Graph) -> str:
    """The DAG as a standalone SVG picture, inputs on top and outputs at the bottom; readable in light and dark."""
    labels = []
    for node in graph.nodes:
        if node.kind is Kind.CONSTANT:
            value = node.literal.value
            labels.append(f"{value:.6g}" if isinstance(value, float) else str(value))
        else:
            labels.append(node.name if node.kind is Kind.STORE else label(node))
    return draw.graph_svg(graph, labels)


# --- plans ------------------------------------------------------------------------------------------------------------

_SCREEN = 24
"""Computes that are printed; of more, the first and the last."""


def plan_text(plan: EpiloguePlan) -> str:
    """A plan on one screen: loads, constants, computes, reductions, stores, facts."""
    lines = [f"plan {plan.key[:12]}  accumulator {plan.accumulator_dtype}"]
    lines += _section("loads", [_load(load) for load in plan.loads])
    lines += _section("constants", [_constant(constant) for constant in plan.constants])
    lines += _section("computes", _shortened(list(_computes(plan))))
    lines += _section("reduces", list(_reduces(plan)))
    lines += _section("stores", list(_stores(plan)))
    facts = plan.facts
    lines.append(
        f"facts     an element: {facts.load_bytes:g} B loaded, {facts.store_bytes:g} B stored, "
        f"{facts.alu_operations:g} alu, {facts.fma_operations:g} fma, {facts.special_operations:g} special; "
        f"{facts.live_slots} live at once"
    )
    return "\n".join(lines)


def _section(name: str, rows: list[str]) -> list[str]:
    return [f"{name if k == 0 else '':<10}{row}" for k, row in enumerate(rows)]


def _shortened(rows: list[str]) -> list[str]:
    if len(rows) <= _SCREEN:
        return rows
    half = _SCREEN // 2
    return [*rows[:half], f"... {len(rows) - 2 * half} more ...", *rows[-half:]]


def _varies(broadcast: Broadcast, halved: bool = False) -> str:
    return broadcast.name.lower() + (" N/2" if halved else "")


def _route(route: Route | None) -> str:
    if route is None:
        return ""
    return f" via {route.via.value}" + (f" {route.bits_per_copy} bit" if route.bits_per_copy else "")


def _load(load: PlanLoad) -> str:
    source = "accum" if load.access is Access.ACCUM else f"{load.access.value} {load.operand}"
    dtype = (
        load.dtype.short if load.dtype is load.compute_dtype else f"{load.dtype.short} -> {load.compute_dtype.short}"
    )
    return f"%{load.slot} = {source}  {dtype}  {_varies(load.broadcast, load.halved)}{_route(load.route)}"


def _constant(constant: PlanConstant) -> str:
    value = constant.literal.value
    text = str(np.float32(value)) if constant.compute_dtype is FLOAT32 else repr(value)
    return f"%{constant.slot} = {text}  {constant.compute_dtype.short}"


def _computes(plan: EpiloguePlan) -> Iterator[str]:
    for compute in plan.computes:
        operands = " ".join(f"%{slot}" for slot in compute.operands)
        extra = "".join(f" {name}={_spelled(value)}" for name, value in compute.attributes)
        dtype = compute.compute_dtype.short
        if compute.operand_dtype is not compute.compute_dtype:
            dtype = f"{compute.operand_dtype.short} -> {dtype}"
        varies = _varies(compute.broadcast, compute.halved)
        yield f"%{compute.slot} = {compute.primitive} {operands}{extra}  {dtype}  {varies}"


def _rounded(rounding: Rounding) -> str:
    return "" if rounding is Rounding.NONE else f", {rounding.value.replace('_', ' ')}"


def _reduces(plan: EpiloguePlan) -> Iterator[str]:
    for reduce in plan.reduces:
        axes = ", ".join(name for name, folded in zip("lmn", reduce.axes, strict=True) if folded)
        yield (
            f"out {reduce.destination} = {reduce.combine} %{reduce.operand} over {axes} "
            f"in {reduce.accumulate_dtype.short}  {reduce.dtype.short}{_rounded(reduce.rounding)}"
        )


def _stores(plan: EpiloguePlan) -> Iterator[str]:
    for store in plan.stores:
        yield (
            f"out {store.destination} = %{store.operand}  {store.dtype.short}{_rounded(store.rounding)}"
            f"{'  N/2' if store.halved else ''}{_route(store.route)}"
        )
