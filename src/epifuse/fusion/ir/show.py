# SPDX-License-Identifier: Apache-2.0
"""Graphs and plans for human eyes: text, tree, mermaid, SVG."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

import numpy as np

from epifuse.dtypes import FLOAT32
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

_CHARACTER, _PADDING, _HEIGHT, _GAP, _LAYER = 7.3, 26.0, 32.0, 22.0, 66.0

_STYLE = """
.epifuse { font: 13px ui-monospace, Menlo, Consolas, monospace; color-scheme: light dark; }
.epifuse text { text-anchor: middle; dominant-baseline: central; fill: #1b1f24; }
.epifuse rect { stroke-width: 1.4; fill: #ffffff; stroke: #57606a; }
.epifuse path { fill: none; stroke: #6e7781; stroke-width: 1.3; }
.epifuse .accum rect, .epifuse .load rect { fill: #ddf4ff; stroke: #0969da; }
.epifuse .constant rect { fill: #f6f8fa; stroke: #8c959f; }
.epifuse .reduce rect { fill: #fff8c5; stroke: #9a6700; }
.epifuse .store rect { fill: #dafbe1; stroke: #1a7f37; }
@media (prefers-color-scheme: dark) {
.epifuse text { fill: #e6edf3; }
.epifuse rect { fill: #161b22; stroke: #8b949e; }
.epifuse path { stroke: #8b949e; }
.epifuse .accum rect, .epifuse .load rect { fill: #0c2d6b; stroke: #58a6ff; }
.epifuse .constant rect { fill: #21262d; stroke: #8b949e; }
.epifuse .reduce rect { fill: #4b2900; stroke: #d29922; }
.epifuse .store rect { fill: #033a16; stroke: #3fb950; }
}"""


def graph_svg(graph: Graph) -> str:
    """The DAG as a standalone SVG picture, inputs on top and outputs at the bottom; readable in light and dark."""
    labels = [n.name if n.kind is Kind.STORE else label(n) for n in graph.nodes]
    widths = [len(text) * _CHARACTER + _PADDING for text in labels]
    layers = _ordered_layers(graph)
    spans = [sum(widths[i] for i in layer) + _GAP * (len(layer) - 1) for layer in layers]
    width, height = max(spans) + 2 * _GAP, len(layers) * _LAYER + _GAP
    middle: dict[int, tuple[float, float]] = {}
    for depth, (layer, span) in enumerate(zip(layers, spans, strict=True)):
        x = (width - span) / 2
        for index in layer:
            middle[index] = (x + widths[index] / 2, _GAP + depth * _LAYER + _HEIGHT / 2)
            x += widths[index] + _GAP
    title = f"Epilogue graph of {', '.join(graph.outputs)}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="epifuse" role="img" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}">',
        f"<title>{escape(title)}</title>",
        f"<style>{_STYLE}\n</style>",
    ]
    for index, node in enumerate(graph.nodes):
        parts += [_edge(middle[i], middle[index]) for i in node.inputs if i >= 0]
    for index, node in enumerate(graph.nodes):
        x, y = middle[index]
        parts.append(
            f'<g class="{node.kind.value}"><rect x="{x - widths[index] / 2:.1f}" y="{y - _HEIGHT / 2:.1f}" '
            f'width="{widths[index]:.1f}" height="{_HEIGHT:.0f}" rx="7"/>'
            f'<text x="{x:.1f}" y="{y:.1f}">{escape(labels[index])}</text></g>'
        )
    return "\n".join([*parts, "</svg>"])


def _edge(start: tuple[float, float], end: tuple[float, float]) -> str:
    (x0, y0), (x1, y1) = (start[0], start[1] + _HEIGHT / 2), (end[0], end[1] - _HEIGHT / 2)
    bend = _LAYER / 2
    return f'<path d="M{x0:.1f} {y0:.1f} C{x0:.1f} {y0 + bend:.1f} {x1:.1f} {y1 - bend:.1f} {x1:.1f} {y1:.1f}"/>'


def _ordered_layers(graph: Graph) -> list[list[int]]:
    """Node indices by depth; within a layer, each node stands near the middle of its neighbours."""
    nodes = graph.nodes
    users: list[list[int]] = [[] for _ in nodes]
    inputs = [[i for i in node.inputs if i >= 0] for node in nodes]
    depth = [0] * len(nodes)
    for index, below in enumerate(inputs):
        depth[index] = max((depth[i] + 1 for i in below), default=0)
        for i in below:
            users[i].append(index)
    for index, node in enumerate(nodes):
        if not node.inputs and users[index]:
            depth[index] = min(depth[u] for u in users[index]) - 1  # a leaf stands just above its first user
    layers: list[list[int]] = [[] for _ in range(max(depth) + 1)]
    for index, level in enumerate(depth):
        layers[level].append(index)
    place = {index: k / len(layer) for layer in layers for k, index in enumerate(layer)}
    for neighbours in (inputs, users, inputs, users):
        for layer in layers:
            mean = {i: sum(place[j] for j in near) / len(near) if (near := neighbours[i]) else place[i] for i in layer}
            layer.sort(key=lambda i: (mean[i], i))  # noqa: B023 - used at once
            place.update({index: (k + 0.5) / len(layer) for k, index in enumerate(layer)})
    return layers


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
