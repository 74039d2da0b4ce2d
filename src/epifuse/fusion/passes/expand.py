# SPDX-License-Identifier: Apache-2.0
"""Composite and gated operations become the primitives that their rows are written in."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from epifuse.errors import IrError, Place
from epifuse.fusion.ir.graph import Value
from epifuse.fusion.ir.infer import TypedBuilder
from epifuse.fusion.ir.node import Attribute, Kind, Literal
from epifuse.fusion.passes.program import Context, Program
from epifuse.fusion.passes.simplify import moved
from epifuse.fusion.vocabulary import table
from epifuse.fusion.vocabulary.table import Level, Operation, Result

_DEEPEST = 32
"""How far composites may be written in composites; a row that is written in itself gets no further."""


class PrimitiveBuilder(TypedBuilder):
    """A builder that never holds anything but primitives: adding a composite runs its body on symbolic operands."""

    depth = 0

    def compute(
        self,
        operation: Operation,
        inputs: Iterable[int],
        attributes: dict[str, Attribute] | None = None,
        place: Place | None = None,
    ) -> int:
        """Append a primitive or a reduction, or the primitives of a composite; the index of the result."""
        if operation.level is Level.PRIMITIVE or operation.level is Level.REDUCTION:
            return super().compute(operation, inputs, attributes, place)
        if operation.body is None:
            raise IrError(f"{operation.name} is no primitive and has no body.", place=place)
        if self.depth == _DEEPEST:
            raise IrError(f"{operation.name} is written in itself.", place=place)
        if operation.result is Result.FLOAT:
            inputs = [self._widened(i, place) for i in inputs]
        operands = [None if i < 0 else Value(self, i, place) for i in inputs]
        flags = {k: v.value if isinstance(v, Literal) else v for k, v in (attributes or {}).items()}
        self.depth += 1
        try:
            result = operation.body(*operands, **flags)
        finally:
            self.depth -= 1
        return self._returned(operation, result, place)

    def _widened(self, index: int, place: Place | None) -> int:
        """An integer enters a floating operation as a float, so that its body cannot overflow in integers."""
        if index < 0 or self.types[index].dtype.is_float:
            return index
        if self.nodes[index].kind is Kind.CONSTANT:
            return self.constant(float(self.nodes[index].literal.value), place)
        return super().compute(table.lookup("cast"), (index,), {"dtype": self.typing.float}, place)

    def _returned(self, operation: Operation, result: Any, place: Place | None) -> int:
        if isinstance(result, Value):
            return result.index
        if isinstance(result, int | float):
            return self.constant(result, place)
        raise IrError(f"The body of {operation.name} gave {result!r}, which is no value of an epilogue.", place=place)


def expand(program: Program, context: Context) -> Program:
    """Write every operation in primitives; they carry the place of the operation that they come from."""
    builder = PrimitiveBuilder(context.typing)
    new: list[int] = []
    for old in program.nodes:
        node = moved(old, new)
        if node.kind is Kind.COMPUTE:
            row = table.lookup(node.op)
            if row.level is not Level.PRIMITIVE:
                new.append(builder.compute(row, node.inputs, dict(node.attributes), node.place))
                continue
        new.append(builder.add(node))
    return Program.of(builder)
