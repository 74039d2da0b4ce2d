# SPDX-License-Identifier: Apache-2.0
"""What must hold of a graph at each stage of lowering, as a table of rules.

The rules run after every pass, so that a rewrite that breaks the graph fails at that pass and names the node, instead
of giving a wrong kernel three layers later.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence

from epifuse.errors import IrError
from epifuse.fusion.ir.node import Kind, Literal, Node, ValueType
from epifuse.fusion.vocabulary import table
from epifuse.fusion.vocabulary.table import Level, Result, Role
from epifuse.records import dataclass


class Stage(enum.IntEnum):
    """How far a graph has come; a rule holds from its stage on."""

    FRONT_END = 0
    """As the front end gives it."""
    SIMPLIFIED = 1
    """Every node is used, and no two are equal (later passes may leave some; FOLDED clears them)."""
    EXPANDED = 2
    """Primitives only."""
    ROUNDED = 3
    """Every operand has the dtype that its user computes in."""
    FOLDED = 4
    """And, again, every node is used, and no two are equal."""


@dataclass(frozen=True, slots=True)
class View:
    """What a rule may look at: the nodes, their types (empty in the front end's graph) and the stage."""

    nodes: Sequence[Node]
    types: Sequence[ValueType]
    stage: Stage


Check = Callable[[View, int, Node], str | None]


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule: which nodes it is about, from which stage on it holds, and the check, which says what is wrong."""

    kinds: frozenset[Kind]
    since: Stage
    check: Check


# --- the rules --------------------------------------------------------------------------------------------------------


def _inputs_come_first(view: View, index: int, node: Node) -> str | None:
    for i in node.inputs:
        if i >= index or i < -1:
            return f"its input %{i} does not stand before it"
        if i >= 0 and view.nodes[i].kind is Kind.STORE:
            return f"its input %{i} is a store, which has no value"
    return None


def _reductions_feed_stores(view: View, index: int, node: Node) -> str | None:
    for i in node.inputs:
        if i >= 0 and view.nodes[i].kind is Kind.REDUCE:
            return f"its input %{i} is a reduction, which only a store may take"
    return None


def _is_leaf(view: View, index: int, node: Node) -> str | None:
    if node.inputs:
        return "it takes inputs"
    if node.kind is Kind.LOAD and not node.name:
        return "it has no operand's name"
    if node.kind is Kind.CONSTANT and not (len(node.attributes) == 1 and isinstance(node.attributes[0][1], Literal)):
        return "it has no literal"
    return None


def _is_known(view: View, index: int, node: Node) -> str | None:
    row = table.find(node.op)
    if row is None:
        return f"{node.op!r} is not in the vocabulary"
    if node.kind is Kind.REDUCE:
        return None if row.level is Level.REDUCTION else f"{node.op} is no reduction"
    if row.level is Level.REDUCTION:
        return f"{node.op} is a reduction in a COMPUTE node"
    if view.stage >= Stage.EXPANDED and row.level is not Level.PRIMITIVE:
        return f"{node.op} is no primitive"
    return None


def _has_its_operands(view: View, index: int, node: Node) -> str | None:
    row = table.find(node.op)
    if row is None:
        return None
    roles = [p.role for p in row.parameters if p.role in (Role.OPERAND, Role.OPTIONAL)]
    if len(node.inputs) != len(roles):
        return f"{node.op} takes {len(roles)} operands, not {len(node.inputs)}"
    for i, role in zip(node.inputs, roles, strict=True):
        if i < 0 and (role is Role.OPERAND or view.stage >= Stage.EXPANDED):
            return f"an operand of {node.op} is absent"
    return None


def _stores_one_value(view: View, index: int, node: Node) -> str | None:
    if len(node.inputs) != 1 or node.inputs[0] < 0:
        return "a store takes exactly one value"
    return None if node.name else "it has no output's name"


def _operands_have_its_dtype(view: View, index: int, node: Node) -> str | None:
    row = table.lookup(node.op)
    types = view.types
    inputs = node.inputs
    if node.op == "where":
        if types[inputs[0]].dtype.name != "bool":
            return f"its condition %{inputs[0]} is {types[inputs[0]].dtype.name}"
        inputs = inputs[1:]
    if row.result is Result.CAST:
        return None
    first = types[inputs[0]].dtype if row.result is Result.BOOL else types[index].dtype
    for i in inputs:
        if types[i].dtype is not first:
            return f"its operand %{i} is {types[i].dtype.name} where {first.name} is computed"
    return None if first.name != "bool" else "a condition takes part in arithmetic"


_LEAVES = frozenset({Kind.ACCUM, Kind.LOAD, Kind.CONSTANT})
_OPERATIONS = frozenset({Kind.COMPUTE, Kind.REDUCE})
_COMPUTE = frozenset({Kind.COMPUTE})
_STORE = frozenset({Kind.STORE})

RULES: tuple[Rule, ...] = (
    Rule(_LEAVES, Stage.FRONT_END, _is_leaf),
    Rule(_OPERATIONS | _STORE, Stage.FRONT_END, _inputs_come_first),
    Rule(_OPERATIONS, Stage.FRONT_END, _reductions_feed_stores),
    Rule(_OPERATIONS, Stage.FRONT_END, _is_known),
    Rule(_OPERATIONS, Stage.FRONT_END, _has_its_operands),
    Rule(_STORE, Stage.FRONT_END, _stores_one_value),
    Rule(_COMPUTE, Stage.ROUNDED, _operands_have_its_dtype),
)
"""Rules about one node, in the order in which they run."""


def _checks(stage: Stage) -> dict[Kind, tuple[Check, ...]]:
    return {kind: tuple(r.check for r in RULES if kind in r.kinds and r.since <= stage) for kind in Kind}


_CHECKS = {stage: _checks(stage) for stage in Stage}


# --- running them -----------------------------------------------------------------------------------------------------


def verify(
    nodes: Sequence[Node], types: Sequence[ValueType] = (), stage: Stage = Stage.FRONT_END, by: str = ""
) -> None:
    """Run every rule of ``stage``; ``by`` names the pass that made the nodes.

    Raises:
        IrError: (an AssertionError) the first rule that does not hold, with the node.
    """
    view = View(nodes, types, stage)
    checks = _CHECKS[stage]
    for index, node in enumerate(nodes):
        for check in checks[node.kind]:
            wrong = check(view, index, node)
            if wrong is not None:
                raise _broken(by, index, node, wrong)
    _verify_whole(view, by)


def _verify_whole(view: View, by: str) -> None:
    nodes = view.nodes
    used = bytearray(len(nodes))
    names: set[tuple[Kind, str]] = set()
    stores = 0
    for index, node in enumerate(nodes):
        for i in node.inputs:
            used[i] = 1  # -1 marks the last node, which is a store and needs no mark
        if node.kind in (Kind.STORE, Kind.LOAD, Kind.ACCUM):
            key = (node.kind, node.name)
            if key in names:
                raise _broken(by, index, node, f"there are two {node.kind.value} nodes of this name")
            names.add(key)
            stores += node.kind is Kind.STORE
    if not stores:
        raise IrError(f"{by or 'the front end'} left a graph without a store.")
    if view.types and len(view.types) != len(nodes):
        raise IrError(f"{by or 'the front end'} left {len(nodes)} nodes and {len(view.types)} types.")
    if view.stage not in (Stage.SIMPLIFIED, Stage.FOLDED):
        return
    for index, node in enumerate(nodes):
        if not used[index] and node.kind is not Kind.STORE:
            raise _broken(by, index, node, "nothing uses it")
    if len(set(nodes)) != len(nodes):
        index = next(i for i, node in enumerate(nodes) if node in nodes[:i])
        raise _broken(by, index, nodes[index], "an equal node stands before it")


def _broken(by: str, index: int, node: Node, wrong: str) -> IrError:
    what = " ".join(part for part in (node.kind.value, node.op, node.name) if part)
    return IrError(
        f"{by or 'The front end'} left a broken graph: in node %{index} ({what}), {wrong}.", place=node.place
    )
