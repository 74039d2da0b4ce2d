# SPDX-License-Identifier: Apache-2.0
"""What the passes hand on: ``Program``, nodes with their types, and ``Context``, what the epilogue is bound to."""

from __future__ import annotations

from collections.abc import Mapping

from epifuse.errors import OperandError
from epifuse.fusion.ir.infer import TypedBuilder, Typing
from epifuse.fusion.ir.node import Node, ValueType
from epifuse.fusion.plan import OutputSpec
from epifuse.records import dataclass


@dataclass(frozen=True, slots=True)
class Program:
    """Nodes in topological order and the type of each (no types in the front end's graph)."""

    nodes: tuple[Node, ...]
    types: tuple[ValueType, ...] = ()

    @classmethod
    def of(cls, builder: TypedBuilder) -> Program:
        """What a builder has collected."""
        return cls(tuple(builder.nodes), tuple(builder.types))


@dataclass(frozen=True, slots=True)
class Context:
    """The dtypes and broadcasts that the epilogue is bound to, and which of its outputs have N/2 columns."""

    typing: Typing
    outputs: Mapping[str, OutputSpec]
    halved_outputs: frozenset[str]

    def output(self, node: Node) -> OutputSpec:
        """The specification of a STORE node's destination.

        Raises:
            OperandError: it is not given.
        """
        spec = self.outputs.get(node.name)
        if spec is None:
            raise OperandError(f"Output {node.name!r} is not given.", place=node.place)
        return spec
