# SPDX-License-Identifier: Apache-2.0
"""Which values of an epilogue have N/2 columns, because a gated operation folded pairs of columns into one."""

from __future__ import annotations

from functools import lru_cache

from epifuse.errors import OperandError
from epifuse.fusion.ir.graph import Graph
from epifuse.fusion.ir.node import Kind, Node
from epifuse.fusion.vocabulary import table
from epifuse.fusion.vocabulary.table import Level

COLUMN_SELECTORS = frozenset({"even_columns", "odd_columns"})
"""The primitives whose operand has N columns and whose result has N/2."""

_FREE, _FULL, _HALVED = 0, 1, 2


@lru_cache(maxsize=512)
def halved_nodes(graph: Graph) -> frozenset[int]:
    """Indices of the nodes with N/2 columns: results of gated operations and all that is combined with them.

    A value made of operands and constants alone takes the width that its users ask for: N/2 where all of them have
    N/2, else N (then it must not vary along the columns; ``infer`` sees to that).

    Raises:
        OperandError: a node combines a value of N columns with one of N/2, or halves twice.
    """
    nodes = graph.nodes
    if not any(halves(node) for node in nodes):
        return frozenset()
    width = [_FREE] * len(nodes)
    for index, node in enumerate(nodes):
        if node.kind is Kind.ACCUM:
            width[index] = _FULL
        elif node.inputs:
            found = {width[i] for i in node.inputs if i >= 0} - {_FREE}
            if halves(node):
                if _HALVED in found:
                    raise halved_twice(node)
                width[index] = _HALVED
            elif len(found) == 2:
                raise width_conflict(node)
            else:
                width[index] = found.pop() if found else _FREE
    asked: list[set[int]] = [set() for _ in nodes]
    for index in range(len(nodes) - 1, -1, -1):
        node = nodes[index]
        wish = {_FULL} if halves(node) else {width[index]} if width[index] else asked[index]
        for i in node.inputs:
            if i >= 0 and width[i] == _FREE:
                asked[i] |= wish
    for index, node in enumerate(nodes):
        if width[index] == _FREE:
            source = node.inputs[0] if node.kind is Kind.STORE else index
            width[index] = _HALVED if asked[source] == {_HALVED} else _FULL
    return frozenset(i for i, w in enumerate(width) if w == _HALVED)


def halves(node: Node) -> bool:
    """Whether the node's operands have N columns and its result N/2."""
    if node.kind is not Kind.COMPUTE:
        return False
    row = table.find(node.op)
    return node.op in COLUMN_SELECTORS or (row is not None and row.level is Level.GATED)


def halved_twice(node: Node) -> OperandError:
    """The refusal of a gated operation on what another one made."""
    return OperandError(
        f"{node.op} takes pairs of adjacent columns, but its operand has N/2 columns already.",
        place=node.place,
        advice="Use one gated operation on values of N columns.",
    )


def width_conflict(node: Node) -> OperandError:
    """The refusal of N columns beside N/2."""
    return OperandError(
        f"{node.op} combines a value of N columns with one of N/2, which a gated operation made.",
        place=node.place,
        advice="After a gated operation every operand has N/2 columns; do arithmetic on N columns before it.",
    )
