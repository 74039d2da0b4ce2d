# SPDX-License-Identifier: Apache-2.0
"""How equality is judged: the one place that says how far a result may be from float64.

A result D is right where it lies between ``round(exact - slack)`` and ``round(exact + slack)``, ``exact`` being the
float64 reference and ``round`` the one rounding of the store: |D - exact| <= half an ulp + slack. The slack is the
error that the arithmetic may make before that rounding, carried to the output:

* the product's, ``c(K) * u * (|A| |B|)`` with u the accumulator's half ulp: the reference is evaluated again with the
  accumulator moved by it;
* each operation's, as its row of the vocabulary states it: the reference is evaluated again with that one value moved.

A reduction may add its own rounding, ``log2`` of its number of terms in ulps of the sum of magnitudes, and the slack of
what it folds, folded. On integer-valued data ``exactly`` asks for equality instead, which no slack can hide behind.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from epifuse import dtypes
from epifuse.arguments import GemmArguments
from epifuse.check.ulp import ulp_of
from epifuse.dtypes import DType
from epifuse.fusion import reference
from epifuse.fusion.ir import infer
from epifuse.fusion.ir.graph import Graph, GraphBuilder
from epifuse.fusion.ir.node import Broadcast, Kind, Node, ValueType
from epifuse.fusion.plan import Access, OperandSpec
from epifuse.fusion.vocabulary import table
from epifuse.fusion.vocabulary.table import Level
from epifuse.runtime.rounding import round_to, round_to_tf32, tf32_allowed
from epifuse.runtime.tensors import Number, as_number, as_torch

PRIMITIVE_ULP = 4.0
"""What any operation may be off, in ulps of the compute dtype, where its row does not allow more."""
SHORT_FORMS = 4.0
"""Times as much where every output has 16 bits or fewer, as kernels may then take approximate instructions."""


def product_factor(k: int, *, float8: bool = False) -> float:
    """c(K): how many half ulps of ``|A| |B|`` the product may be off.

    Tensor cores add groups of products and truncate. On centered data the errors grow as the square root of K; 4 covers
    short sums, where it is the single rounding that counts. The largest of 512 x 512 results on an H200, normal data,
    and K = 64, 1024 and 16384 (the factor is 6, 12 and 36): float16 and bfloat16 3.0, 7.6, 22.7; TF32 4.4, 11.5, 35.9.

    Of products of 8-bit floats, Hopper's tensor cores keep 14 bits beside the largest term. Kernels are to add their
    sums in float32 every 128 positions of K (256 in long sums that end in 16 bits or fewer); then the errors of these
    sums are independent, and beside ``|A| |B|`` they shrink as the square root of K grows. The largest of 512 x 768
    results on an H200, normal data, and K = 128, 1024, 2048 and 8192 (the factor is 8199, 2908, 2063 and 1051): 4822,
    822, 483, 193 every 128, as of torch._scaled_mm; 858 and 371 every 256; torch's fast mode, one sum over all of K,
    is off by 4822, 6463, 6958, 8714.
    """
    least = 4.0 + math.sqrt(k) / 4.0
    return least + 8192.0 * math.sqrt(128.0 / max(k, 128)) if float8 else least


def _factor(args: GemmArguments) -> float:
    float8 = any(operand.traits.dtype.name.startswith("float8") for operand in (args.A, args.B))
    return product_factor(args.problem_size.K, float8=float8)


@dataclass(frozen=True, eq=False)
class Expected:
    """What one output should hold: the float64 value, the bounds after rounding, and the slack between them."""

    exact: torch.Tensor
    lowest: torch.Tensor
    highest: torch.Tensor
    slack: torch.Tensor

    def wrong(self, result: torch.Tensor) -> torch.Tensor:
        """Which elements of ``result`` are outside the bounds, as a bool tensor. NaN must meet NaN."""
        value, low, high = (_wide(x) for x in (result, self.lowest, self.highest))
        right = (value >= low) & (value <= high)
        # Where the slack is unbounded the value sits on the edge of a domain, such as the square root's, and is free.
        free = torch.isinf(self.slack)
        return ~(right | free | (value.isnan() & self.exact.isnan()))

    def share(self, result: torch.Tensor) -> float:
        """The worst error as a share of what is allowed: at most 1 where nothing is wrong; 0.0 for no elements."""
        if result.numel() == 0:
            return 0.0
        allowed = 0.5 * ulp_of(self.exact, result.dtype) + self.slack
        error = (_wide(result) - self.exact).abs() / allowed
        error = torch.where(self.wrong(result), error.nan_to_num(nan=math.inf), error.nan_to_num(nan=0.0).clamp(max=1))
        return float(error.max().item())


def _wide(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.float64)


def exactly(args: GemmArguments) -> dict[str, Expected]:
    """Outputs of ``args`` by name, to be met exactly: the float64 reference rounded once."""
    found = {}
    exact = reference.gemm(args, rounded=False)
    for name, value in exact.items():
        rounded = round_to(value, _destination(args, name))
        found[name] = Expected(_wide(value), rounded, rounded, torch.zeros_like(value, dtype=torch.float64))
    return found


def expected(args: GemmArguments) -> dict[str, Expected]:
    """Outputs of ``args`` by name, with the slack that the arithmetic may take."""
    spread = _Spread(args)
    found = {}
    for name, value in reference.gemm(args, rounded=False).items():
        exact = _wide(value)
        slack = torch.zeros_like(exact) if not value.is_floating_point() else spread.slack(name, exact)
        slack = torch.where(exact.isfinite(), slack.nan_to_num(nan=math.inf), torch.zeros_like(slack))
        dtype = _destination(args, name)
        bounds = [round_to(value if not value.is_floating_point() else exact + s, dtype) for s in (-slack, slack)]
        found[name] = Expected(exact, bounds[0], bounds[1], slack)
    return found


def _destination(args: GemmArguments, name: str) -> DType:
    if args.epilogue is None:
        return args.out.dtype
    return dtypes.of(as_torch(args.epilogue.tensors[name], name).dtype)


class _Spread:
    """The slack of every output of one GEMM."""

    def __init__(self, args: GemmArguments) -> None:
        self.args = args
        # A GEMM without an epilogue stores its accumulator.
        plain = Graph((Node(Kind.ACCUM), Node(Kind.STORE, inputs=(0,), name="out")), (), ("out",))
        self.graph = plain if args.epilogue is None else args.epilogue.graph
        self.operands = {} if args.epilogue is None else _operands(args, self.graph)
        self.accum = reference.product(args.A.view, args.B.view, args.accumulator_type).to(torch.float64)
        accumulator = args.accumulator_type
        self.is_float = accumulator.is_float
        self.compute = dtypes.FLOAT64 if accumulator is dtypes.FLOAT64 else dtypes.FLOAT32
        self.ulp = 2.0 ** (1 - self.compute.digits)
        if self.is_float:
            magnitudes = _magnitudes(args)
            self.accum_slack = _factor(args) * 2.0**-accumulator.digits * magnitudes
        # What is folded stands as an output of its own, before the fold.
        self.elementwise = _unfolded(self.graph)
        self.bits = max((_destination(args, name).bits for name in self.graph.outputs), default=32)
        self._found: dict[str, torch.Tensor] | None = None

    def slack(self, name: str, exact: torch.Tensor) -> torch.Tensor:
        if self._found is None:
            self._found = self._elementwise()
        found = self._found[name]
        fold = self.graph.reductions.get(name)
        if fold is None:
            return found.reshape(exact.shape)
        values = self._evaluate(self.elementwise)[name]
        folded = _fold(fold, found, exact.shape)
        if fold.op in ("sum", "mean"):
            terms = max(2.0, values.numel() / max(1, exact.numel()))
            folded = folded + self.ulp * math.log2(terms) * 2 * _fold(fold, values.abs(), exact.shape)
        return folded

    def _elementwise(self) -> dict[str, torch.Tensor]:
        center = self._evaluate(self.elementwise)
        total = {name: torch.zeros_like(value, dtype=torch.float64) for name, value in center.items()}
        if self.is_float:
            for slack in self._independent_slacks():
                moved = [self._evaluate(self.elementwise, self.accum + s * slack) for s in (-1.0, -0.5, 0.5, 1.0)]
                _add(total, center, moved)
        types = self._types()
        for index, node in enumerate(self.elementwise.nodes):
            if node.kind is Kind.COMPUTE and types[index].dtype.is_float:
                accuracy = table.lookup(node.op).accuracy
                if accuracy.ulp == 0.0 and accuracy.absolute == 0.0:
                    continue
                short = SHORT_FORMS if self.bits <= 16 else 1.0
                relative = short * max(accuracy.ulp, PRIMITIVE_ULP) * self.ulp
                graphs = [_moved(self.elementwise, index, sign * relative, 0.0) for sign in (-1, 1)]
                if absolute := accuracy.absolute_into(self.bits):
                    graphs += [_moved(self.elementwise, index, 0.0, sign * absolute) for sign in (-1, 1)]
                _add(total, center, [self._evaluate(graph) for graph in graphs])
        return total

    def _independent_slacks(self) -> list[torch.Tensor]:
        """The accumulator's slack in independent parts: a gated output sees two columns, each off in its own way."""
        if not infer.halved_nodes(self.elementwise):
            return [self.accum_slack]
        even = torch.arange(self.accum_slack.shape[-1]) % 2 == 0
        even = even.to(self.accum_slack.device)
        return [self.accum_slack * even, self.accum_slack * ~even]

    def _types(self) -> tuple[ValueType, ...]:
        """The type of every node of the elementwise graph."""
        specs = {name: self._spec(name) for name in self.elementwise.loads}
        return infer.infer(self.elementwise, self.args.accumulator_type, specs)

    def _spec(self, name: str) -> OperandSpec:
        value = self.operands[name]
        size = self.args.problem_size
        if not isinstance(value, torch.Tensor):
            integer = isinstance(value, int) and not self.is_float
            return OperandSpec(Access.ARGUMENT, dtypes.INT32 if integer else self.compute, Broadcast.SCALAR)
        halved = self.elementwise.loads[name] in infer.halved_nodes(self.elementwise)
        problem = infer.Problem(size.L, size.M, size.N, self.accum.dim())
        broadcast = infer.broadcast_of(name, tuple(value.shape), value.stride(), problem, halved)
        return OperandSpec(Access.MEMORY, dtypes.of(value.dtype), broadcast, halved)

    def _evaluate(self, graph: Graph, accum: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        used = self.accum if accum is None else accum
        if not self.is_float:
            used = used.to(torch.int64)
        found = reference.evaluate(graph, used, self.operands, numbers=self.compute)
        return {name: value.to(torch.float64) for name, value in found.items()}


def _operands(args: GemmArguments, graph: Graph) -> dict[str, torch.Tensor | Number]:
    assert args.epilogue is not None
    found: dict[str, torch.Tensor | Number] = {}
    for name in graph.loads:
        value = args.epilogue.tensors[name]
        number = as_number(value)
        found[name] = as_torch(value, name) if number is None else number
    return found


def _magnitudes(args: GemmArguments) -> torch.Tensor:
    a, b = args.A.view, args.B.view
    if tf32_allowed():
        a, b = (round_to_tf32(x) if x.dtype == torch.float32 else x for x in (a, b))
    a, b = (x.to(torch.float64).abs().nan_to_num(nan=0.0, posinf=0.0) for x in (a, b))
    return torch.matmul(a, b)


def _add(
    total: dict[str, torch.Tensor], center: Mapping[str, torch.Tensor], moved: list[dict[str, torch.Tensor]]
) -> None:
    """Add to each output's slack the farthest that one of the moved evaluations got."""
    for name, value in center.items():
        steps = [torch.where(other[name] == value, 0.0, (other[name] - value).abs()) for other in moved]
        total[name] += torch.stack(steps).amax(0)


def _moved(graph: Graph, index: int, relative: float, absolute: float) -> Graph:
    """``graph`` with the value of one node multiplied by ``1 + relative`` and raised by ``absolute``."""
    builder = GraphBuilder()
    places: list[int] = []
    for number, node in enumerate(graph.nodes):
        inputs = tuple(i if i < 0 else places[i] for i in node.inputs)
        place = builder.add(replace(node, inputs=inputs))
        if number == index:
            if relative:
                # As x + x * r, for 1 + r itself would be rounded to the compute dtype.
                step = builder.compute(table.lookup("mul"), (place, builder.constant(relative)))
            else:
                step = builder.constant(absolute)
                if table.lookup(node.op).level is Level.GATED:  # whose bound counts per unit of the odd column
                    odd = builder.compute(table.lookup("abs"), (_odd(builder, inputs[0]),))
                    scale = builder.compute(table.lookup("maximum"), (odd, builder.constant(1.0)))
                    step = builder.compute(table.lookup("mul"), (step, scale))
            place = builder.compute(table.lookup("add"), (place, step))
        places.append(place)
    return replace(graph, nodes=tuple(builder.nodes))


def _odd(builder: GraphBuilder, place: int) -> int:
    return builder.compute(table.lookup("odd_columns"), (place,))


def _unfolded(graph: Graph) -> Graph:
    """``graph`` with what each reduction folds stored in place of the reduction's result."""
    nodes = []
    for node in graph.nodes:
        if node.kind is Kind.STORE and graph.nodes[node.inputs[0]].kind is Kind.REDUCE:
            node = replace(node, inputs=(graph.nodes[node.inputs[0]].inputs[0],))  # noqa: PLW2901
        nodes.append(node)
    # A REDUCE without a store stays behind, evaluated and dropped.
    return replace(graph, nodes=tuple(nodes))


def _fold(node: Node, x: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """``x`` folded as ``node`` folds; a slack of an extremum is at most the largest slack."""
    op = node.op if node.op in ("sum", "mean") else "amax"
    folding = Node(Kind.REDUCE, op, (0,), node.attributes)
    graph = Graph((Node(Kind.ACCUM), folding, Node(Kind.STORE, inputs=(1,), name="out")), (), ("out",))
    folded = reference.evaluate(graph, x, {}, destinations={"out": tuple(shape)})["out"]
    return folded.nan_to_num(nan=0.0, neginf=0.0).reshape(shape)
