# SPDX-License-Identifier: Apache-2.0
"""Every change of dtype becomes a node, and every store learns how it rounds.

After this pass the operands of an operation have the dtype in which it computes, constants are rounded to theirs, and
nothing converts behind a backend's back.
"""

from __future__ import annotations

import numpy as np

from epifuse import dtypes
from epifuse.dtypes import DType
from epifuse.fusion.ir.infer import TypedBuilder
from epifuse.fusion.ir.node import Attribute, Kind, Literal, Node
from epifuse.fusion.passes.program import Context, Program
from epifuse.fusion.passes.simplify import moved
from epifuse.fusion.plan import Rounding
from epifuse.fusion.vocabulary import table
from epifuse.fusion.vocabulary.table import Result


def rounding_of(value: DType, store: DType) -> Rounding:
    """What a store of dtype ``store`` does to a value of dtype ``value`` (int32, int64, float32, float64 or bool)."""
    if value is store or (value is dtypes.FLOAT32 and store is dtypes.FLOAT64):
        return Rounding.NONE
    if value is dtypes.INT32 and store in (dtypes.INT64, dtypes.FLOAT64):
        return Rounding.NONE
    return Rounding.SATURATE if store.saturates else Rounding.NEAREST_EVEN


def accumulate_dtype(combine: str, operand: DType) -> DType:
    """The dtype in which partial results of a reduction are kept: sums of integers in int64."""
    return dtypes.INT64 if operand.is_integer and combine in ("sum", "mean") else operand


def round_explicitly(program: Program, context: Context) -> Program:
    """Put a cast wherever a value is used in another dtype than its own, and round constants to theirs."""
    builder = TypedBuilder(context.typing)
    new: list[int] = []
    for old in program.nodes:
        node = moved(old, new)
        if node.kind is Kind.COMPUTE:
            new.append(_compute(builder, node))
        elif node.kind is Kind.STORE:
            new.append(_store(builder, node, context.output(node).dtype))
        elif node.kind is Kind.REDUCE:
            new.append(_with_inputs(builder, node, (_condition_as_number(builder, node.inputs[0]),)))
        elif node.kind is Kind.CONSTANT and not node.literal.integer:
            new.append(_constant(builder, node, context.typing.float))
        else:
            new.append(builder.add(node))
    return Program.of(builder)


def _compute(builder: TypedBuilder, node: Node) -> int:
    if table.lookup(node.op).result is Result.CAST:
        return _cast(builder, node)
    wanted = builder.typing.operand_dtype(node, builder.types)
    inputs = node.inputs
    if node.op == "where":
        inputs = (_as_condition(builder, inputs[0], node), *[_as(builder, i, wanted) for i in inputs[1:]])
    else:
        inputs = tuple([_as(builder, i, wanted) for i in inputs])
    return _with_inputs(builder, node, inputs)


def _with_inputs(builder: TypedBuilder, node: Node, inputs: tuple[int, ...]) -> int:
    if inputs != node.inputs:
        node = Node(node.kind, node.op, inputs, node.attributes, node.name, node.place)
    return builder.add(node)


def _cast(builder: TypedBuilder, node: Node) -> int:
    """A cast that the user wrote: to its own compute dtype it is nothing, to bool it is a comparison with zero."""
    source, target = node.inputs[0], node.attribute("dtype")
    assert isinstance(target, DType)
    if target is dtypes.BOOL:
        return _as_condition(builder, source, node)
    if target is builder.types[source].dtype or builder.nodes[source].kind is Kind.CONSTANT:
        source = _as(builder, source, builder.typing.float if target.is_float else builder.types[source].dtype)
        if target is builder.types[source].dtype:
            return source
    return _with_inputs(builder, node, (source,))


def _as(builder: TypedBuilder, index: int, wanted: DType) -> int:
    """The value in the dtype ``wanted``: itself, a converted constant, or a cast."""
    if builder.types[index].dtype is wanted:
        return index
    node = builder.nodes[index]
    if node.kind is Kind.CONSTANT:
        return _constant(builder, node, wanted)
    attributes: dict[str, Attribute] = {"dtype": wanted}
    return builder.compute(table.lookup("cast"), (index,), attributes, node.place)


def _as_condition(builder: TypedBuilder, index: int, node: Node) -> int:
    if builder.types[index].dtype is dtypes.BOOL:
        return index
    zero: int | float = 0 if builder.types[index].dtype.is_integer else 0.0
    return builder.compute(table.lookup("not_equal"), (index, builder.constant(zero, node.place)), {}, node.place)


def _condition_as_number(builder: TypedBuilder, index: int) -> int:
    return _as(builder, index, dtypes.INT32) if builder.types[index].dtype is dtypes.BOOL else index


def _store(builder: TypedBuilder, node: Node, dtype: DType) -> int:
    source = node.inputs[0]
    if dtype is dtypes.BOOL:
        source = _as_condition(builder, source, node)
    elif builder.types[source].dtype is dtypes.INT64:
        source = _as(builder, source, builder.typing.float)
    else:
        source = _condition_as_number(builder, source)
    return _with_inputs(builder, node, (source,))


def _constant(builder: TypedBuilder, node: Node, dtype: DType) -> int:
    return builder.add(
        Node(Kind.CONSTANT, attributes=(("value", rounded_literal(node.literal.value, dtype)),), place=node.place)
    )


def rounded_literal(value: int | float, dtype: DType) -> Literal:
    """The number in ``dtype`` (float32, float64, or an integer dtype for an int): one rounding, beyond range inf."""
    if dtype.is_integer:
        return Literal.of(int(value))
    try:
        number = float(_odd_int(value)) if isinstance(value, int) and dtype is dtypes.FLOAT32 else float(value)
    except OverflowError:
        number = float("inf") if value > 0 else float("-inf")
    if dtype is dtypes.FLOAT32:
        with np.errstate(over="ignore"):
            number = float(np.float32(number))
    return Literal.of(number)


def _odd_int(value: int) -> int:
    """The integer cut to 50 bits, the last one set where any beyond was: exact in float64, so that only one rounding
    follows."""
    size, extra = abs(value), abs(value).bit_length() - 50
    if extra <= 0:
        return value
    kept = (size >> extra | (size & ((1 << extra) - 1) != 0)) << extra
    return kept if value > 0 else -kept
