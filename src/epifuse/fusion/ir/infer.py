# SPDX-License-Identifier: Apache-2.0
"""Shapes, dtypes and broadcasts: what an operand, a node and an output of an epilogue are.

Shape rules (``broadcast_of``, ``check_output``, ``reduction_axes``) look at one tensor against one problem. Type rules
(``Typing``, ``infer``) look at the graph and see no shape, so that one plan serves every problem size.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Mapping, Sequence
from functools import lru_cache

from epifuse import dtypes
from epifuse.dtypes import DType
from epifuse.errors import BroadcastWarning, OperandError
from epifuse.fusion.ir.graph import Graph, GraphBuilder
from epifuse.fusion.ir.node import Broadcast, Kind, Literal, Node, ValueType
from epifuse.fusion.ir.widths import halved_nodes, halved_twice, halves, width_conflict
from epifuse.fusion.plan import Access, OperandSpec
from epifuse.fusion.vocabulary import table
from epifuse.fusion.vocabulary.table import Operation, Result
from epifuse.records import dataclass

__all__ = [
    "Problem",
    "TypedBuilder",
    "Typing",
    "broadcast_of",
    "check_output",
    "check_reductions",
    "clear",
    "first_two_commute",
    "float_dtype",
    "halved_nodes",
    "infer",
    "reduction_axes",
    "value_type",
]

_INT32 = range(-(2**31), 2**31)


@dataclass(frozen=True, slots=True)
class Problem:
    """The sizes that operands broadcast against; ``rank`` is 2 or 3, as A was given (rank 2 has l = 1)."""

    l: int  # noqa: E741 - the field's name for the batch
    m: int
    n: int
    rank: int = 2

    @property
    def shape(self) -> tuple[int, ...]:
        """(M, N), or (L, M, N) for rank 3."""
        return (self.m, self.n) if self.rank == 2 else (self.l, self.m, self.n)


# --- operands ---------------------------------------------------------------------------------------------------------


def broadcast_of(
    name: str, shape: Sequence[int], strides: Sequence[int], problem: Problem, halved: bool = False
) -> Broadcast:
    """Along which of (l, m, n) an operand varies: torch's rule against (L, M, N), or (L, M, N/2) where ``halved``.

    A dimension of the problem's size varies unless it is an expanded one (size above 1, stride 0); strides of size-1
    dimensions are ignored. One element is a SCALAR. A vector (M,) with M != N is a COLUMN, with a ``BroadcastWarning``.

    Raises:
        OperandError: the shape does not broadcast; the message has the operand's name and both shapes.
    """
    shape = tuple(shape)
    if len(shape) > 3:
        raise OperandError(f"Operand {name!r} has {len(shape)} dimensions, shape {shape}; at most 3 are possible.")
    if math.prod(shape) == 1:
        return Broadcast.SCALAR
    columns = _columns(name, problem, halved)
    if len(shape) == 1 and shape[0] != columns:
        return _column_vector(name, shape[0], strides[0], problem, columns, halved)
    varies = [False, False, False]
    first = 3 - len(shape)
    for axis, size, stride in zip(range(first, 3), shape, strides, strict=True):
        expected = (problem.l, problem.m, columns)[axis]
        if size not in (expected, 1):
            raise _mismatch(name, shape, problem, halved)
        varies[axis] = size == expected and not (size > 1 and stride == 0)
    if problem.rank == 2:
        varies[0] = False
    return Broadcast.of(varies[0], varies[1], varies[2])


def _column_vector(name: str, size: int, stride: int, problem: Problem, columns: int, halved: bool) -> Broadcast:
    ambiguous = halved and size == problem.n
    if size != problem.m or ambiguous:
        raise _mismatch(name, (size,), problem, halved)
    if size > 1 and stride == 0:
        return Broadcast.SCALAR
    warnings.warn(
        f"Operand {name!r} of shape ({size},) is taken as a column, because M is {size} and N is {columns}; "
        f"with M == N it would be a row. Pass it with shape ({size}, 1), e.g. {name}[:, None].",
        BroadcastWarning,
        stacklevel=_frames_of_ours(),
    )
    return Broadcast.COLUMN


def _frames_of_ours() -> int:
    """The ``stacklevel`` at which a warning of the caller's points at the user's line."""
    level, frame = 0, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("epifuse."):
        level, frame = level + 1, frame.f_back
    return level + 1


def _columns(name: str, problem: Problem, halved: bool) -> int:
    if not halved:
        return problem.n
    if problem.n % 2:
        raise OperandError(
            f"{name!r} belongs to a gated operation, which takes pairs of adjacent columns, but N is {problem.n}.",
            advice="Give B an even number of columns.",
        )
    return problem.n // 2


def _mismatch(name: str, shape: tuple[int, ...], problem: Problem, halved: bool) -> OperandError:
    full = (problem.l, problem.m, problem.n // 2 if halved else problem.n)
    what = "(L, M, N/2)" if halved else "(L, M, N)"
    return OperandError(
        f"Operand {name!r} of shape {shape} does not broadcast to {what} = {full}.",
        advice="Pass a scalar, (N,), (1, N), (M, 1), (M, N), (L, 1, N), (L, M, 1), (L, 1, 1) or (L, M, N)"
        + (", with N/2 in place of N." if halved else "."),
    )


# --- outputs ----------------------------------------------------------------------------------------------------------


def check_output(name: str, shape: Sequence[int], problem: Problem, halved: bool = False) -> None:
    """An elementwise output is whole: (L, M, N), or (M, N) where L is 1; N/2 in place of N where ``halved``.

    Raises:
        OperandError: it is not; the message has the output's name and both shapes.
    """
    shape = tuple(shape)
    columns = _columns(name, problem, halved)
    full = (problem.l, problem.m, columns)
    if shape == full or (problem.l == 1 and shape == full[1:]):
        return
    expected = full[1:] if problem.rank == 2 else full
    raise OperandError(
        f"Output {name!r} has shape {shape}; the epilogue gives {expected}.",
        advice="Outputs that are not reductions are whole: "
        + ("(M, N/2)" if halved else "(M, N)")
        + ", batches first.",
    )


def reduction_axes(
    name: str, node: Node, shape: Sequence[int], problem: Problem, halved: bool = False
) -> tuple[bool, bool, bool]:
    """Which of (l, m, n) the REDUCE ``node`` folds into the destination ``name`` of ``shape``.

    ``dim`` counts as torch does on the accumulator's rank. Without ``dim`` the destination decides: one element takes
    everything, (L,) or (L, 1, 1) each batch's M and N. With ``keepdim`` the destination must follow it; without,
    it may have the folded dimensions or not.

    Raises:
        OperandError: ``dim`` is out of range or repeated, or it disagrees with the destination's shape.
    """
    shape = tuple(shape)
    given = dict(node.attributes)
    dim, keepdim = given.get("dim"), given.get("keepdim")
    sizes = (problem.l, problem.m, _columns(name, problem, halved))
    if dim is None or dim == ():
        axes = (True, True, True)
        if problem.l > 1 and shape in ((problem.l,), (problem.l, 1, 1)):
            axes = (False, True, True)
    else:
        axes = _axes_of(name, node, dim if isinstance(dim, tuple) else (dim,), problem)
    if shape not in _destinations(axes, sizes, problem, keepdim):
        allowed = " or ".join(str(s) for s in _destinations(axes, sizes, problem, keepdim))
        call = f"{node.op}(...)" if dim is None else f"{node.op}(..., dim={_plain(dim)})"
        raise OperandError(
            f"Output {name!r} has shape {shape}, but {call} over {problem.shape} gives {allowed}.",
            place=node.place,
            advice="Give the destination that shape, or name the dimensions that are folded with dim=.",
        )
    return axes


def _axes_of(name: str, node: Node, dims: tuple[object, ...], problem: Problem) -> tuple[bool, bool, bool]:
    found = set()
    for item in dims:
        dim = item.value if isinstance(item, Literal) else item
        if not isinstance(dim, int) or not -problem.rank <= dim < problem.rank:
            raise OperandError(
                f"dim={dim!r} of {node.op}, which gives {name!r}, is out of range: "
                f"the accumulator has {problem.rank} dimensions.",
                place=node.place,
                advice=f"dim counts as torch does, from {-problem.rank} to {problem.rank - 1}.",
            )
        axis = dim % problem.rank + 3 - problem.rank
        if axis in found:
            raise OperandError(f"dim={_plain(dims)} of {node.op} names a dimension twice.", place=node.place)
        found.add(axis)
    return (0 in found, 1 in found, 2 in found)


def _plain(dim: object) -> str:
    if isinstance(dim, tuple):
        return "(" + ", ".join(_plain(d) for d in dim) + ("," if len(dim) == 1 else "") + ")"
    return str(dim.value if isinstance(dim, Literal) else dim)


def _destinations(
    axes: tuple[bool, bool, bool], sizes: tuple[int, int, int], problem: Problem, keepdim: object
) -> list[tuple[int, ...]]:
    """Every shape that a destination may have, in the order in which a message names them."""
    ranks = [3] if problem.rank == 3 else [2, 3]
    if problem.rank == 3 and problem.l == 1:
        ranks.append(2)
    kept = [tuple(1 if a else s for a, s in zip(axes, sizes, strict=True))[3 - r :] for r in ranks]
    dropped = [tuple(s for a, s in zip(axes[3 - r :], sizes[3 - r :], strict=True) if not a) for r in ranks]
    if keepdim is True or (isinstance(keepdim, Literal) and keepdim.value):
        found = kept
    elif keepdim is None:
        found = dropped + kept
    else:
        found = dropped
    if all(axes) or (axes[1] and axes[2] and problem.l == 1):
        # One element: torch gives (); everybody allocates (1,), and a reduction over all of it cannot go astray.
        found = [*found, (1,)]
    return list(dict.fromkeys(found))


# --- dtypes -----------------------------------------------------------------------------------------------------------


def float_dtype(accumulator: DType) -> DType:
    """The dtype of floating arithmetic: float64 under a float64 accumulator, else float32."""
    return dtypes.FLOAT64 if accumulator is dtypes.FLOAT64 else dtypes.FLOAT32


@lru_cache(maxsize=256)
def value_type(dtype: DType, broadcast: Broadcast, halved: bool = False) -> ValueType:
    """The one record of these fields."""
    return ValueType(dtype, broadcast, halved)


class Typing:
    """The type rules of one epilogue: what each node is, given what its inputs are."""

    def __init__(self, accumulator_dtype: DType, operands: Mapping[str, OperandSpec]) -> None:
        self.accumulator_dtype = accumulator_dtype
        self.operands = operands
        self.float = float_dtype(accumulator_dtype)

    def of(self, node: Node, types: Sequence[ValueType]) -> ValueType:
        """The type of ``node``; ``types`` are those of the nodes before it.

        Raises:
            OperandError: an operand or a combination of operands that the epilogue's arithmetic does not take.
        """
        kind = node.kind
        if kind is Kind.COMPUTE:
            return self._compute(node, types)
        if kind is Kind.LOAD:
            return self._load(node)
        if kind is Kind.CONSTANT:
            return value_type(self._literal(node.literal), Broadcast.SCALAR)
        if kind is Kind.ACCUM:
            dtype = dtypes.INT32 if self.accumulator_dtype.is_integer else self.float
            return value_type(dtype, Broadcast.BATCH_MATRIX)
        if kind is Kind.STORE:
            return types[node.inputs[0]]
        return self._reduce(node, types[node.inputs[0]])

    def common(self, found: Sequence[DType], node: Node) -> DType:
        """The dtype in which values of these dtypes are combined: integers stay integers, conditions become 0 or 1."""
        wide = False
        for dtype in found:
            if dtype.is_float:
                return self.float
            wide = wide or dtype is dtypes.INT64
        if wide:
            raise OperandError(
                f"An integer beyond int32 takes part in the integer arithmetic of {node.op}.",
                place=node.place,
                advice="Integer epilogues compute in int32; write the number as a float (2.0**40) to leave it.",
            )
        return dtypes.INT32

    def operand_dtype(self, node: Node, types: Sequence[ValueType]) -> DType:
        """The dtype that the operands of a COMPUTE node are widened to (the condition of ``where`` apart)."""
        row = table.lookup(node.op)
        if row.result is Result.FLOAT:
            return self.float
        if row.result is Result.CAST:
            return types[node.inputs[0]].dtype
        return self.common([types[i].dtype for i in _arithmetic_inputs(node)], node)

    def _literal(self, literal: Literal) -> DType:
        if not literal.integer:
            return self.float
        return dtypes.INT32 if literal.value in _INT32 else dtypes.INT64

    def _load(self, node: Node) -> ValueType:
        spec = self.operands.get(node.name)
        if spec is None:
            raise OperandError(f"Operand {node.name!r} is not given.", place=node.place)
        dtype = spec.dtype
        halved = spec.halved and spec.broadcast.n
        if dtype is dtypes.BOOL:
            return value_type(dtype, spec.broadcast, halved)
        if spec.access is not Access.ARGUMENT:
            if dtype is dtypes.INT64:
                raise OperandError(
                    f"Operand {node.name!r} is int64; integer arithmetic of an epilogue is int32.",
                    place=node.place,
                    advice=f"Pass {node.name}.to(torch.int32), or a floating dtype.",
                )
            if dtype is dtypes.FLOAT64 and self.float is not dtypes.FLOAT64:
                raise OperandError(
                    f"Operand {node.name!r} is float64, but the epilogue computes in float32 "
                    f"(accumulator_type is {self.accumulator_dtype.name}).",
                    place=node.place,
                    advice=f"Pass {node.name}.float(), or take a float64 accumulator.",
                )
        return value_type(dtypes.INT32 if dtype.is_integer else self.float, spec.broadcast, halved)

    def _compute(self, node: Node, types: Sequence[ValueType]) -> ValueType:
        row = table.lookup(node.op)
        broadcast = Broadcast.SCALAR
        full = half = False
        for i in node.inputs:
            if i >= 0:
                operand = types[i]
                if operand.broadcast is not Broadcast.SCALAR:
                    broadcast = broadcast | operand.broadcast
                    if operand.broadcast.n:
                        full, half = full or not operand.halved, half or operand.halved
        if halves(node):
            if half:
                raise halved_twice(node)
            half = broadcast.n
        elif full and half:
            raise width_conflict(node)
        return value_type(self._result(node, row, types), broadcast, half)

    def _result(self, node: Node, row: Operation, types: Sequence[ValueType]) -> DType:
        if row.result is Result.FLOAT:
            return self.float
        if row.result is Result.CAST:
            return self._cast(node)
        common = self.common([types[i].dtype for i in _arithmetic_inputs(node)], node)
        return dtypes.BOOL if row.result is Result.BOOL else common

    def _cast(self, node: Node) -> DType:
        target = node.attribute("dtype")
        assert isinstance(target, DType)
        if target is dtypes.BOOL:
            return dtypes.BOOL
        if target is dtypes.INT64 or (target is dtypes.FLOAT64 and self.float is not target):
            raise OperandError(
                f"cast to {target.name} is wider than the epilogue computes "
                f"({'int32' if target.is_integer else self.float.name}).",
                place=node.place,
                advice="Cast to a narrower dtype; give the output the wide dtype instead.",
            )
        return dtypes.INT32 if target.is_integer else self.float

    def _reduce(self, node: Node, operand: ValueType) -> ValueType:
        if not (operand.broadcast.m and operand.broadcast.n):
            raise _not_full(node)
        dtype = self.float if node.op == "mean" else self.common([operand.dtype], node)
        return value_type(dtype, operand.broadcast, operand.halved)


def _arithmetic_inputs(node: Node) -> tuple[int, ...]:
    """The inputs that take part in arithmetic: those given, without the condition of ``where``."""
    inputs = node.inputs[1:] if node.op == "where" else node.inputs
    return tuple(i for i in inputs if i >= 0) if -1 in inputs else inputs


def _not_full(node: Node) -> OperandError:
    return OperandError(
        f"{node.op} folds a value that does not vary over all rows and columns, so torch would give something else.",
        place=node.place,
        advice="Reduce a value that depends on accum or on a full tensor; reduce vectors outside the epilogue.",
    )


def infer(graph: Graph, accumulator_dtype: DType, operands: Mapping[str, OperandSpec]) -> tuple[ValueType, ...]:
    """The type of every node, in order.

    Raises:
        OperandError: an operand is missing or of a dtype that the epilogue cannot take, widths disagree, or a
            reduction's operand is not full.
    """
    typing = Typing(accumulator_dtype, operands)
    types: list[ValueType] = []
    for node in graph.nodes:
        types.append(typing.of(node, types))
    return tuple(types)


def first_two_commute(node: Node) -> bool:
    """Whether the first two inputs of a node may be swapped: ``a + b``, and the product in ``multiply_add``."""
    if node.kind is not Kind.COMPUTE:
        return False
    row = table.find(node.op)
    return node.op == "multiply_add" or (row is not None and row.commutative)


class TypedBuilder(GraphBuilder):
    """A graph builder that knows the type of every node as it is added, and shares what commutes."""

    def __init__(self, typing: Typing) -> None:
        super().__init__()
        self.typing = typing
        self.types: list[ValueType] = []

    def add(self, node: Node) -> int:
        """Append a node or find an equal one; the first two inputs of a commutative operation have no order."""
        if len(node.inputs) > 1 and node.inputs[0] > node.inputs[1] and first_two_commute(node):
            first, second, *rest = node.inputs
            node = Node(node.kind, node.op, (second, first, *rest), node.attributes, node.name, node.place)
        index = super().add(node)
        if index == len(self.types):
            self.types.append(self.typing.of(node, self.types))
        return index


# --- reductions of values without the accumulator ---------------------------------------------------------------------


@lru_cache(maxsize=512)
def _reduced_operands(graph: Graph) -> tuple[tuple[Node, frozenset[str]], ...]:
    """REDUCE nodes whose value does not depend on accum, and the operands that it does depend on."""
    if not any(node.kind is Kind.REDUCE for node in graph.nodes):
        return ()
    found = []
    for node in graph.nodes:
        if node.kind is Kind.REDUCE:
            seen, todo = set(node.inputs), list(node.inputs)
            while todo:
                todo += (new := {i for i in graph.nodes[todo.pop()].inputs if i >= 0} - seen)
                seen |= new
            members = [graph.nodes[i] for i in seen]
            if not any(member.kind is Kind.ACCUM for member in members):
                found.append((node, frozenset(m.name for m in members if m.kind is Kind.LOAD)))
    return tuple(found)


def check_reductions(graph: Graph, broadcasts: Mapping[str, Broadcast], problem: Problem) -> None:
    """Refuse reductions of values that do not vary along every dimension of the problem (see ``broadcast_of``).

    Raises:
        OperandError: such a reduction, with its place.
    """
    for node, operands in _reduced_operands(graph):
        broadcast = Broadcast.SCALAR
        for name in operands:
            broadcast = broadcast | broadcasts[name]
        if not (broadcast.m and broadcast.n and (broadcast.l or problem.l == 1)):
            raise _not_full(node)


def clear() -> None:
    """Empty the caches."""
    halved_nodes.cache_clear()
    value_type.cache_clear()
    _reduced_operands.cache_clear()
