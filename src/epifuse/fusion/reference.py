# SPDX-License-Identifier: Apache-2.0
"""The oracle: a graph as the front end made it, evaluated with torch's own functions, in float64 unless told otherwise.

It shares no code with the passes, with plans or with any provider: operations are called through ``on_torch`` of their
rows (composites as torch defines them), broadcasts are torch's, the product is torch's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from epifuse import dtypes
from epifuse.dtypes import DType
from epifuse.fusion.ir.graph import Graph
from epifuse.fusion.ir.node import Kind, Literal, Node
from epifuse.fusion.ir.widths import halved_nodes, halves
from epifuse.fusion.vocabulary import table
from epifuse.fusion.vocabulary.table import Result
from epifuse.runtime.rounding import round_to, round_to_tf32, tf32_allowed
from epifuse.runtime.tensors import as_number, as_torch

if TYPE_CHECKING:
    from epifuse.arguments import GemmArguments

Number: TypeAlias = int | float
Shapes: TypeAlias = Mapping[str, tuple[int, ...]]

_FOLDS: dict[str, Callable[..., torch.Tensor]] = {
    "sum": torch.sum,
    "mean": torch.mean,
    "max": torch.amax,
    "amax": torch.amax,
    "min": torch.amin,
    "amin": torch.amin,
}
_OF_NOTHING = {"sum": 0.0, "mean": math.nan, "max": -math.inf, "amax": -math.inf, "min": math.inf, "amin": math.inf}


def gemm(args: GemmArguments, dtype: torch.dtype = torch.float64, *, rounded: bool = True) -> dict[str, torch.Tensor]:
    """What a run of ``args`` should write, by output name (``out`` without an epilogue); nothing of ``args`` changes.

    Each output has its destination's shape and dtype, rounded once; with ``rounded=False`` it stays in ``dtype`` (int64
    where integers stay integers). float32 A and B are rounded to TF32 first where torch's switch allows that.
    """
    with torch.no_grad():
        accum = product(args.A.view, args.B.view, args.accumulator_type, dtype)
        if args.epilogue is None:
            views = {"out": args.out.view}
            values = {"out": accum}
        else:
            given = args.epilogue.tensors
            graph = args.epilogue.graph
            views = {name: as_torch(given[name], name) for name in graph.outputs}
            values = evaluate(
                graph,
                accum,
                {name: _operand(given[name], name) for name in graph.loads},
                dtype=dtype,
                numbers=dtypes.FLOAT64 if args.accumulator_type is dtypes.FLOAT64 else dtypes.FLOAT32,
                destinations={name: tuple(view.shape) for name, view in views.items()},
            )
        found = {}
        for name, view in views.items():
            value = values[name].reshape(view.shape)
            found[name] = round_to(value, dtypes.of(view.dtype)) if rounded else value
        return found


def product(a: torch.Tensor, b: torch.Tensor, accumulator: DType, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """``a @ b`` as an accumulator of that type holds it: in ``dtype``, or wrapped to 32 bits in int64 for int32.

    It is rounded for a float16 accumulator, and for a float32 one where ``dtype`` is float32.
    """
    if tf32_allowed():
        a, b = (round_to_tf32(x) if x.dtype == torch.float32 else x for x in (a, b))
    exact = torch.matmul(a.to(torch.float64), b.to(torch.float64))
    if accumulator.is_integer:
        return _wrapped(exact.to(torch.int64))
    if accumulator is dtypes.FLOAT16 or dtype == torch.float32:
        exact = round_to(exact, accumulator)
    return exact.to(dtype)


def evaluate(
    graph: Graph,
    accum: torch.Tensor,
    operands: Mapping[str, torch.Tensor | Number],
    *,
    dtype: torch.dtype = torch.float64,
    numbers: DType = dtypes.FLOAT64,
    destinations: Shapes | None = None,
) -> dict[str, torch.Tensor]:
    """The graph's outputs by name, unrounded; elementwise ones have ``accum``'s shape (N/2 columns where halved).

    Integers, and what is made of integers alone, stay integers: held in int64, wrapped to 32 bits. A reduction without
    ``dim`` folds everything, or each batch's M and N where ``destinations`` has it as (L,) or (L, 1, 1).

    Args:
        graph: as the front end made it; a composite is one node.
        accum: (M, N) or (L, M, N); a float64 one may stand for a float32 accumulator that was not rounded.
        operands: by name, of shapes that broadcast; a vector (M,) with M != N is a column.
        dtype: what floating values are computed in: float64, or float32 to compute as a kernel does.
        numbers: what literals, Python numbers and integers are rounded to when they enter floating arithmetic.
        destinations: the outputs' shapes.
    """
    return _Evaluation(graph, accum, operands, dtype, numbers, destinations or {}).outputs()


def _operand(value: Any, name: str) -> torch.Tensor | Number:
    number = as_number(value)
    return as_torch(value, name) if number is None else number


def _wrapped(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.int32).to(torch.int64)


class _Evaluation:
    """One walk over a graph. Values are (l|1, m|1, n|1) tensors in ``dtype``, int64 or bool."""

    def __init__(  # noqa: PLR0917 - evaluate's parameters, handed on once
        self,
        graph: Graph,
        accum: torch.Tensor,
        operands: Mapping[str, torch.Tensor | Number],
        dtype: torch.dtype,
        numbers: DType,
        destinations: Shapes,
    ) -> None:
        self.graph, self.operands, self.destinations = graph, operands, destinations
        self.dtype, self.numbers = dtype, numbers
        self.rank = accum.dim()
        self.accum = self._held(accum if self.rank == 3 else accum.unsqueeze(0))
        self.halved = halved_nodes(graph)
        self.values: list[torch.Tensor] = []

    def outputs(self) -> dict[str, torch.Tensor]:
        found: dict[str, torch.Tensor] = {}
        for index, node in enumerate(self.graph.nodes):
            value = self._value(index, node)
            self.values.append(value)
            if node.kind is Kind.STORE:
                found[node.name] = value
        return {name: found[name] for name in self.graph.outputs}

    def _value(self, index: int, node: Node) -> torch.Tensor:
        if node.kind is Kind.ACCUM:
            return self.accum
        if node.kind is Kind.CONSTANT:
            return self._number(node.literal.value)
        if node.kind is Kind.LOAD:
            return self._load(self.operands[node.name], self._shape(index)[2])
        if node.kind is Kind.COMPUTE:
            return self._compute(node)
        value = self.values[node.inputs[0]]
        if node.kind is Kind.REDUCE:
            return value.expand(self._shape(node.inputs[0]))
        source = self.graph.nodes[node.inputs[0]]
        if source.kind is Kind.REDUCE:
            return self._reduce(source, value, self.destinations.get(node.name))
        full = value.expand(self._shape(index))
        return full if self.rank == 3 else full[0]

    def _shape(self, index: int) -> tuple[int, int, int]:
        l, m, n = self.accum.shape
        return (l, m, n // 2 if index in self.halved else n)

    def _held(self, x: torch.Tensor) -> torch.Tensor:
        if x.dtype == torch.bool:
            return x
        return x.to(self.dtype if x.is_floating_point() else torch.int64)

    def _number(self, value: Number) -> torch.Tensor:
        if isinstance(value, int) and -(2**63) <= value < 2**63:
            return torch.full((1, 1, 1), value, dtype=torch.int64, device=self.accum.device)
        exact = torch.full((1, 1, 1), float(value), dtype=torch.float64, device=self.accum.device)
        return round_to(exact, self.numbers).to(self.dtype)

    def _load(self, operand: torch.Tensor | Number, columns: int) -> torch.Tensor:
        if not isinstance(operand, torch.Tensor):
            return self._number(operand)
        x = self._held(operand.to(self.accum.device))
        if x.dim() == 1 and x.numel() > 1 and x.shape[0] != columns:
            x = x.unsqueeze(1)
        return x.reshape((1,) * (3 - x.dim()) + tuple(x.shape))

    def _floating(self, x: torch.Tensor) -> torch.Tensor:
        return x if x.is_floating_point() else round_to(x, self.numbers).to(self.dtype)

    def _compute(self, node: Node) -> torch.Tensor:
        row = table.lookup(node.op)
        operands = [None if i < 0 else self.values[i] for i in node.inputs]
        attributes = _plain(node)
        if row.result is Result.CAST:
            assert operands[0] is not None
            return self._held(round_to(operands[0], dtypes.of(attributes["dtype"])))
        if halves(node):
            operands = [None if x is None else x.expand(*x.shape[:-1], self.accum.shape[2]) for x in operands]
        first = 1 if node.op == "where" else 0
        floating = row.result is Result.FLOAT or any(x is not None and x.is_floating_point() for x in operands[first:])
        widen = self._floating if floating else _as_integer
        operands[first:] = [None if x is None else widen(x) for x in operands[first:]]
        if first and operands[0] is not None:
            operands[0] = operands[0] != 0
        result: torch.Tensor = row.on_torch(*operands, **attributes)
        return _wrapped(result) if result.dtype == torch.int64 else self._held(result)

    def _reduce(self, node: Node, x: torch.Tensor, destination: Sequence[int] | None) -> torch.Tensor:
        given = _plain(node)
        dim, keepdim = given.get("dim"), bool(given.get("keepdim"))
        if dim is None or dim == ():
            a_batch = x.shape[0] > 1 and destination is not None and tuple(destination) in _per_batch(x.shape[0])
            dims = [1, 2] if a_batch else [0, 1, 2]
        else:
            counted: tuple[Any, ...] = dim if isinstance(dim, tuple) else (dim,)
            numbers = [d.value if isinstance(d, Literal) else d for d in counted]
            dims = [int(d) % self.rank + 3 - self.rank for d in numbers]
        kept = [1 if axis in dims else size for axis, size in enumerate(x.shape)]
        if math.prod(x.shape[axis] for axis in dims) == 0:
            folded = torch.full(kept, _OF_NOTHING[node.op], dtype=torch.float64, device=x.device)
        else:
            x = x.to(torch.float64) if x.is_floating_point() or node.op == "mean" else _as_integer(x)
            folded = _FOLDS[node.op](x, dims, True)
        folded = folded.to(self.dtype) if folded.is_floating_point() else folded
        if self.rank == 2:
            folded = folded[0]
            dims = [axis - 1 for axis in dims if axis > 0]
        return folded if keepdim else folded.reshape([s for axis, s in enumerate(folded.shape) if axis not in dims])


def _plain(node: Node) -> dict[str, Any]:
    return {key: value.value if isinstance(value, Literal) else value for key, value in node.attributes}


def _as_integer(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.int64) if x.dtype == torch.bool else x


def _per_batch(batches: int) -> tuple[tuple[int, ...], ...]:
    return ((batches,), (batches, 1, 1))
