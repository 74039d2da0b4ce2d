# SPDX-License-Identifier: Apache-2.0
"""``Graph``, the frozen DAG of an epilogue, and ``GraphBuilder``, which makes one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field
from functools import cached_property
from typing import Any

from epifuse.errors import Place
from epifuse.fusion.ir.node import Attribute, Kind, Literal, Node
from epifuse.fusion.vocabulary import table
from epifuse.fusion.vocabulary.table import Level, Operation
from epifuse.records import dataclass


@dataclass(frozen=True)
class Graph:
    """An epilogue as data. ``nodes`` are in topological order: every input stands before its user.

    ``inputs`` are the parameters after ``accum`` in the user's order (also those that nothing uses), ``outputs`` the
    returned names in order, ``defaults`` the numbers that parameters take when they are not given. ``text`` is the
    source that was parsed, for messages alone.
    """

    nodes: tuple[Node, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    defaults: tuple[tuple[str, Literal], ...] = ()
    text: str = field(default="", compare=False, repr=False)

    @cached_property
    def _hash(self) -> int:
        return hash((self.nodes, self.inputs, self.outputs, self.defaults))

    def __hash__(self) -> int:
        return self._hash

    def __getstate__(self) -> dict[str, Any]:
        # The cached hash is of this process alone: hashes of strings differ in the next one.
        return {name: value for name, value in self.__dict__.items() if name != "_hash"}

    @cached_property
    def loads(self) -> dict[str, int]:
        """Index of the LOAD node by operand name; operands that nothing uses are absent."""
        return {n.name: i for i, n in enumerate(self.nodes) if n.kind is Kind.LOAD}

    @cached_property
    def stores(self) -> dict[str, int]:
        """Index of the STORE node by output name."""
        return {n.name: i for i, n in enumerate(self.nodes) if n.kind is Kind.STORE}

    @cached_property
    def reductions(self) -> dict[str, Node]:
        """The REDUCE node behind each output that has one, by output name."""
        found = {}
        for name, index in self.stores.items():
            source = self.nodes[self.nodes[index].inputs[0]]
            if source.kind is Kind.REDUCE:
                found[name] = source
        return found

    def place_of(self, subject: str) -> Place | None:
        """Where the user wrote an operation or operand; a primitive is found in the composite that holds it."""
        for node in self.nodes:
            if node.place is not None and subject in (node.op, node.name):
                return node.place
        return None

    def __str__(self) -> str:
        from epifuse.fusion.ir.show import graph_tree  # noqa: PLC0415 - show draws graphs and so imports this module

        return graph_tree(self)

    def _repr_svg_(self) -> str:
        """The picture that a notebook shows."""
        from epifuse.fusion.ir.show import graph_svg  # noqa: PLC0415 - as above

        return graph_svg(self)


class GraphBuilder:
    """Collects nodes in order. Equal nodes are shared: adding one again returns the first one's index."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self._index: dict[Node, int] = {}

    def add(self, node: Node) -> int:
        """Append a node, or find the equal one that stands there already; its index."""
        index = self._index.get(node)
        if index is None:
            index = self._index[node] = len(self.nodes)
            self.nodes.append(node)
        return index

    def accum(self) -> int:
        """The accumulator."""
        return self.add(Node(Kind.ACCUM))

    def load(self, name: str, place: Place | None = None) -> int:
        """An operand of the user's."""
        return self.add(Node(Kind.LOAD, name=name, place=place))

    def constant(self, value: int | float, place: Place | None = None) -> int:
        """A number."""
        return self.add(Node(Kind.CONSTANT, attributes=(("value", Literal.of(value)),), place=place))

    def compute(
        self,
        operation: Operation,
        inputs: Iterable[int],
        attributes: dict[str, Attribute] | None = None,
        place: Place | None = None,
    ) -> int:
        """An operation of the vocabulary (a REDUCE node where the row is a reduction); -1 for an absent operand."""
        kind = Kind.REDUCE if operation.level is Level.REDUCTION else Kind.COMPUTE
        sorted_attributes = tuple(sorted((attributes or {}).items()))
        return self.add(Node(kind, operation.name, tuple(inputs), sorted_attributes, place=place))

    def store(self, name: str, source: int, place: Place | None = None) -> int:
        """An output of the user's."""
        return self.add(Node(Kind.STORE, inputs=(source,), name=name, place=place))

    def value(self, index: int, place: Place | None = None) -> Value:
        """A symbolic handle on a node; what is built from it carries ``place``."""
        return Value(self, index, place)


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """A node of a graph under construction as an operand of Python expressions and vocabulary calls."""

    builder: GraphBuilder
    index: int
    place: Place | None = None

    def emit(self, operation: Operation, operands: tuple[Any, ...], attributes: dict[str, Any]) -> Value:
        """Append ``operation`` (see ``vocabulary.table.Symbolic``)."""
        inputs = [self._index_of(operand) for operand in operands]
        kept = {k: Literal.of(v) if type(v) in (int, float) else v for k, v in attributes.items()}
        return Value(self.builder, self.builder.compute(operation, inputs, kept, self.place), self.place)

    def _index_of(self, operand: Any) -> int:
        if operand is None:
            return -1
        if isinstance(operand, Value):
            return operand.index
        if isinstance(operand, int | float):
            return self.builder.constant(operand, self.place)
        raise TypeError(f"{operand!r} cannot be an operand of an epilogue")

    def _binary(self, name: str, other: Any, swapped: bool = False) -> Value:
        operands = (other, self) if swapped else (self, other)
        return self.emit(table.lookup(name), operands, {})

    def __add__(self, other: Any) -> Value:
        return self._binary("add", other)

    def __radd__(self, other: Any) -> Value:
        return self._binary("add", other, swapped=True)

    def __sub__(self, other: Any) -> Value:
        return self._binary("sub", other)

    def __rsub__(self, other: Any) -> Value:
        return self._binary("sub", other, swapped=True)

    def __mul__(self, other: Any) -> Value:
        return self._binary("mul", other)

    def __rmul__(self, other: Any) -> Value:
        return self._binary("mul", other, swapped=True)

    def __truediv__(self, other: Any) -> Value:
        return self._binary("div", other)

    def __rtruediv__(self, other: Any) -> Value:
        return self._binary("div", other, swapped=True)

    def __neg__(self) -> Value:
        return self.emit(table.lookup("neg"), (self,), {})

    def __pow__(self, exponent: int | float) -> Value:
        return self.emit(table.lookup("pow"), (self,), {"exponent": exponent})

    def __lt__(self, other: Any) -> Value:
        return self._binary("less", other)

    def __le__(self, other: Any) -> Value:
        return self._binary("less_equal", other)

    def __gt__(self, other: Any) -> Value:
        return self._binary("greater", other)

    def __ge__(self, other: Any) -> Value:
        return self._binary("greater_equal", other)

    def __eq__(self, other: object) -> Value:  # type: ignore[override]
        return self._binary("equal", other)

    def __ne__(self, other: object) -> Value:  # type: ignore[override]
        return self._binary("not_equal", other)

    __hash__ = None  # type: ignore[assignment]
