# SPDX-License-Identifier: Apache-2.0
"""What a user hands over: operands, the epilogue with its operands and outputs, and the GEMM they belong to.

All of it is immutable. Everything that discovery and ``supports`` ask is found here once, when ``GemmArguments`` is
made: shapes, traits, the epilogue's plan. A question about arguments later costs a comparison of keys.
"""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Callable, Mapping
from dataclasses import InitVar, dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import torch

from epifuse import dtypes
from epifuse.binding import Bound, View, bind
from epifuse.dtypes import DType
from epifuse.errors import DtypeError, OperandError, OperandTypeError, ShapeError
from epifuse.fusion import frontend
from epifuse.fusion.ir.graph import Graph
from epifuse.fusion.ir.infer import Problem, halved_nodes
from epifuse.fusion.ir.node import Kind, Node
from epifuse.fusion.plan import EpiloguePlan, Route, Transport
from epifuse.records import NamedTuple
from epifuse.runtime.tensors import Number, Traits, as_number, as_torch, traits_of

LOAD_TRANSPORTS = (Transport.TMA, Transport.SYNC_GMEM_LOAD, Transport.ASYNC_GMEM_LOAD)
STORE_TRANSPORTS = (Transport.TMA, Transport.SYNC_GMEM_STORE)


@dataclass(frozen=True)
class _Move:
    """An operand or output of an epilogue with an override of how it moves.

    Raises:
        ValueError: ``via`` is no transport of this direction, or ``num_bits_per_copy`` goes with TMA.
        TypeError: ``num_bits_per_copy`` is no int.
    """

    tensor: Any
    via: Transport | str | None = None
    """None: each kernel chooses, tensor by tensor."""
    num_bits_per_copy: int | None = None
    _accepted: ClassVar[tuple[Transport, ...]] = ()

    def __post_init__(self) -> None:
        kind = type(self).__name__
        accepted = ", ".join(repr(t.value) for t in self._accepted)
        try:
            via = None if self.via is None else Transport(self.via)
        except ValueError:
            via = None
        if self.via is not None and via not in self._accepted:
            raise OperandError(
                f"{kind} via={self.via!r} is not a transport of a {kind.lower()}.", advice=f"Accepted: {accepted}."
            )
        object.__setattr__(self, "via", via)
        bits = self.num_bits_per_copy
        if bits is None:
            return
        if isinstance(bits, bool) or not isinstance(bits, int):
            raise OperandTypeError(f"{kind} num_bits_per_copy must be an int, got {type(bits).__name__}.", advice="")
        if via in (None, Transport.TMA):
            raise OperandError(
                f"{kind} num_bits_per_copy goes only with an explicit via other than TMA.",
                advice="TMA copies whole boxes; leave num_bits_per_copy out, or name another via.",
            )
        if bits not in (8, 16, 32, 64, 128):
            raise OperandError(
                f"{kind} num_bits_per_copy={bits} is no width that a GPU can copy.",
                advice="Accepted: 8, 16, 32, 64, 128.",
            )

    @property
    def route(self) -> Route | None:
        """The override as a plan carries it; None where the kernel chooses."""
        return Route(self.via, self.num_bits_per_copy) if isinstance(self.via, Transport) else None


@dataclass(frozen=True)
class Load(_Move):
    """How an epilogue operand is read: ``Load(C, via="async_gmem_load", num_bits_per_copy=64)``."""

    _accepted: ClassVar[tuple[Transport, ...]] = LOAD_TRANSPORTS


@dataclass(frozen=True)
class Store(_Move):
    """How an epilogue output is written: ``Store(D, via="sync_gmem_store")``."""

    _accepted: ClassVar[tuple[Transport, ...]] = STORE_TRANSPORTS


class EpilogueArguments:
    """An epilogue function with everything it reads and writes, by name.

    Args:
        epilogue_fn: a function whose first parameter is ``accum``, its source text, or a lambda. It is parsed at once
            and never called.
        operands_and_outputs: a tensor (torch, numpy, DLPack) or number for each parameter after ``accum``, a tensor
            for each returned name; each may be wrapped in ``Load`` or ``Store``. A name that is both is one tensor.

    Raises:
        EpilogueError: (a ValueError) the function is outside the epilogue language; the message shows the line.
        OperandError: (a ValueError) a name is missing or unexpected.
        OperandTypeError: (a TypeError) a value is neither tensor nor number.
    """

    __slots__ = ("__weakref__", "_frozen", "_views", "epilogue_fn", "graph", "tensors", "transports")

    epilogue_fn: Callable[..., Any] | str
    graph: Graph
    tensors: Mapping[str, Any]
    transports: Mapping[str, Load | Store]

    def __init__(self, /, epilogue_fn: Callable[..., Any] | str, **operands_and_outputs: Any) -> None:
        graph = frontend.parse(epilogue_fn)
        tensors: dict[str, Any] = {}
        transports: dict[str, Load | Store] = {}
        defaults = dict(graph.defaults)
        given = operands_and_outputs
        for name in dict.fromkeys(graph.inputs + graph.outputs):
            if name in given:
                value = given.pop(name)
            elif name in defaults and name not in graph.outputs:
                value = defaults[name].value
            else:
                raise _missing(name, graph, given)
            if isinstance(value, Load | Store):
                transports[name] = _checked_move(name, value, name in graph.outputs)
                value = value.tensor
            tensors[name] = value.tensor if isinstance(value, DenseTensor) else value
        if given:
            extra = ", ".join(given)
            raise OperandError(
                f"Unexpected keyword arguments for epilogue: {extra}",
                advice=f"The function knows {', '.join(tensors) or 'no operand'}.",
            )
        outputs = set(graph.outputs)
        self._views: dict[str, View] = {name: _view(name, value, name in outputs) for name, value in tensors.items()}
        self.epilogue_fn = epilogue_fn
        self.graph = graph
        self.tensors = MappingProxyType(tensors)
        self.transports = MappingProxyType(transports)
        self._frozen = True

    def __setattr__(self, name: str, value: Any) -> None:
        if getattr(self, "_frozen", False):
            raise AttributeError(f"EpilogueArguments is immutable; make a new one to change {name}")
        object.__setattr__(self, name, value)

    def __reduce__(self) -> tuple[object, ...]:
        return (_epilogue_again, (self.epilogue_fn, {**self.tensors, **self.transports}))

    @property
    def parameters(self) -> list[Any]:
        """The operands and outputs as they were given, in the order of ``parameter_names``."""
        return list(self.tensors.values())

    @property
    def parameter_names(self) -> list[str]:
        """The names of the parameters after ``accum``, then of the outputs, each once."""
        return list(self.tensors)

    def __repr__(self) -> str:
        return f"EpilogueArguments({', '.join(self.tensors)})"


def _epilogue_again(function: Callable[..., Any] | str, given: dict[str, Any]) -> EpilogueArguments:
    """A copy's own: the tensors of a copy lie elsewhere."""
    return EpilogueArguments(function, **given)


def _missing(name: str, graph: Graph, given: Mapping[str, Any]) -> OperandError:
    known = {*graph.inputs, *graph.outputs}
    unknown = difflib.get_close_matches(name, [other for other in given if other not in known], n=1)
    hint = f" ({unknown[0]}=... was given: is it {name} misspelled?)" if unknown else ""
    return OperandError(
        f"Argument {name} is not provided in the kwargs of the EpilogueArguments constructor",
        advice=f"Pass {name}=...; the function takes ({', '.join(graph.inputs)}) after accum and "
        f"returns ({', '.join(graph.outputs)}).{hint}",
    )


def _checked_move(name: str, move: Load | Store, is_output: bool) -> Load | Store:
    if isinstance(move, Store) and not is_output:
        raise OperandError(
            f"{name} is an operand of the epilogue but was wrapped in Store.",
            advice=f"Wrap it in Load: {name}=Load(...).",
        )
    if isinstance(move, Load) and is_output:
        raise OperandError(
            f"{name} is an output of the epilogue but was wrapped in Load.",
            advice=f"Wrap it in Store: {name}=Store(...).",
        )
    return move


def _view(name: str, value: Any, is_output: bool) -> View:
    if isinstance(value, torch.Tensor):
        return value, traits_of(value, name)
    number = as_number(value)
    if number is None:
        if isinstance(value, bool | complex):
            raise OperandTypeError(f"{name} is {value!r}; an epilogue operand is a tensor, an int or a float.")
        tensor = as_torch(value, name, output=is_output)
        return tensor, traits_of(tensor, name)
    if is_output:
        raise OperandTypeError(f"{name} is an output but a number was given.", advice="Pass a tensor to write to.")
    return number


class Operand:
    """Base of what may stand for A, B and out."""

    def copy(self) -> Operand:
        """The operand over the same memory (operands are immutable)."""
        return self


@dataclass(frozen=True, eq=False)
class DenseTensor(Operand):
    """One dense strided tensor of any framework; ``tensor`` is the object that was given.

    ``name`` is the operand's, for messages.
    """

    tensor: Any
    name: InitVar[str] = "The operand"
    traits: Traits = field(init=False, repr=False, compare=False)
    view: torch.Tensor = field(init=False, repr=False, compare=False)
    """The same memory as a torch tensor."""

    def __post_init__(self, name: str) -> None:
        view = as_torch(self.tensor, name)
        object.__setattr__(self, "view", view)
        object.__setattr__(self, "traits", traits_of(view, name))

    def __reduce__(self) -> tuple[object, ...]:
        return (DenseTensor, (self.tensor,))  # a copy lies elsewhere, so its traits are found anew

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents, the batch first where there is one."""
        return self.traits.shape

    @property
    def stride(self) -> tuple[int, ...]:
        """Strides in elements."""
        return self.traits.strides

    @property
    def dtype(self) -> DType:
        """Element type, a row of ``epifuse.dtypes`` (equal to the torch dtype too)."""
        return self.traits.dtype

    @property
    def device(self) -> torch.device:
        """Where the memory is."""
        return self.view.device

    def data_ptr(self) -> int:
        """Address of the first element in bytes."""
        return self.view.data_ptr()

    def numel(self) -> int:
        """Number of elements."""
        return self.traits.numel


class PerformanceControls:
    """Options of a single run that change speed and not results; no operator has any yet."""


@dataclass(frozen=True, kw_only=True)
class RuntimeArguments:
    """Base of all arguments: an operator names the subclass that it takes in ``supported_args_type``."""

    performance: PerformanceControls | None = None

    @property
    def key(self) -> tuple[Any, ...]:
        """What a list of operators for these arguments depends on; equal keys, equal answers.

        Unless a subclass says more, arguments are equal to themselves alone. (Their ``id`` would be another's soon.)
        """
        token: tuple[Any, ...] | None = self.__dict__.get("_token")
        if token is None:
            token = self.__dict__.setdefault("_token", (type(self), object()))
        return token


class GemmProblemSize(NamedTuple):
    """Extents of a GEMM."""

    M: int
    N: int
    K: int
    L: int


_ACCUMULATORS = (dtypes.FLOAT32, dtypes.FLOAT16, dtypes.FLOAT64, dtypes.INT32)
_PLAIN = Graph((Node(Kind.ACCUM), Node(Kind.STORE, inputs=(0,), name="out")), (), ("out",))
"""The graph of a GEMM without an epilogue, so that a kernel always has a plan."""


@dataclass(frozen=True, init=False, eq=False)
class GemmArguments(RuntimeArguments):
    """``out = A @ B``, or whatever the epilogue makes of it.

    Args:
        A: (M,K) or (L,M,K). B: (K,N) or (L,K,N). out: (M,N) or (L,M,N). Any strides; all on one device.
        accumulator_type: float32, float16, float64 or int32 (a torch dtype, a DSL type or a name).
        epilogue: its D is written; ``out`` then stays untouched where it is another buffer.

    ``plan`` is the epilogue as every kernel sees it (without one, a plan that stores the accumulator), ``loads`` and
    ``outputs`` are the tensors and numbers in the plan's order.

    Raises:
        ShapeError: (a ValueError) shapes disagree; the message holds them.
        OperandError: (a ValueError) an epilogue operand does not broadcast, or sits on another device.
        OverlapError: (a ValueError) an output overlaps itself, another output, or an operand.
        DtypeError: (a TypeError) a dtype without a row, or one that cannot accumulate.
    """

    A: DenseTensor
    B: DenseTensor
    out: DenseTensor
    accumulator_type: DType
    epilogue: EpilogueArguments | None
    bound: Bound = field(repr=False)

    def __init__(
        self,
        A: Any,
        B: Any,
        out: Any,
        accumulator_type: Any,
        epilogue: EpilogueArguments | None = None,
        *,
        performance: PerformanceControls | None = None,
    ) -> None:
        put = object.__setattr__
        a, b, o = _dense(A, "A"), _dense(B, "B"), _dense(out, "out")
        accumulator = dtypes.of(accumulator_type)
        if accumulator not in _ACCUMULATORS:
            names = ", ".join(d.name for d in _ACCUMULATORS)
            raise DtypeError(f"accumulator_type {accumulator.name} cannot accumulate a GEMM.", advice=f"Use {names}.")
        if epilogue is not None and not isinstance(epilogue, EpilogueArguments):
            raise OperandTypeError(
                f"epilogue is {reprlib.repr(epilogue)}, not EpilogueArguments.",
                advice="Wrap the function: EpilogueArguments(fn, D=D, ...).",
            )
        _check_shapes(a.shape, b.shape, o.shape, epilogue is not None and _halves_d(epilogue.graph))
        put(self, "A", a)
        put(self, "B", b)
        put(self, "out", o)
        put(self, "accumulator_type", accumulator)
        put(self, "epilogue", epilogue)
        put(self, "performance", performance)
        batch = a.shape[0] if len(a.shape) == 3 else 1
        problem = Problem(batch, a.shape[-2], b.shape[-1], len(a.shape))
        if epilogue is None:
            _require_writeable(o.tensor)
            graph, routes = _PLAIN, {}
            views: dict[str, View] = {"out": (o.view, o.traits)}
        else:
            graph = epilogue.graph
            views = epilogue._views
            routes = {name: move.route for name, move in epilogue.transports.items() if move.route is not None}
        put(self, "bound", bind(graph, views, routes, problem, accumulator, (a.traits, b.traits)))

    def __reduce__(self) -> tuple[object, ...]:
        given = (self.A, self.B, self.out, self.accumulator_type, self.epilogue, self.performance)
        return (_arguments_again, (type(self), given))  # a copy's tensors lie elsewhere, so it is bound anew

    @property
    def plan(self) -> EpiloguePlan:
        """The epilogue as every kernel sees it."""
        return self.bound.plan

    @property
    def loads(self) -> tuple[torch.Tensor | Number, ...]:
        """Tensors and numbers by ``PlanLoad.operand``."""
        return self.bound.loads

    @property
    def outputs(self) -> tuple[torch.Tensor, ...]:
        """Tensors by ``PlanStore.destination`` and ``PlanReduce.destination``."""
        return self.bound.outputs

    @cached_property
    def memo(self) -> dict[Any, Any]:
        """What operators keep about these arguments, by operator; gone with them, so it must not refer back to them."""
        return {}

    @cached_property
    def problem_size(self) -> GemmProblemSize:
        """M, N, K and L."""
        batch = self.A.shape[0] if len(self.A.shape) == 3 else 1
        return GemmProblemSize(self.A.shape[-2], self.B.shape[-1], self.A.shape[-1], batch)

    @cached_property
    def negated(self) -> tuple[str, ...]:
        """Names of tensors whose memory holds the values with the other sign (see ``Traits.negated``)."""
        bound = self.bound
        named = [("A", self.A.traits), ("B", self.B.traits), *zip(bound.names.loads, bound.load_traits, strict=True)]
        named += zip(bound.names.stores, bound.output_traits, strict=True)
        return tuple(name for name, traits in named if traits is not None and traits.negated)

    @property
    def device(self) -> str:
        """The device of all operands, e.g. ``cpu`` or ``cuda:0``."""
        return self.A.traits.device

    @cached_property
    def key(self) -> tuple[Any, ...]:
        """Shapes, strides, dtypes, alignments, plan: equal keys have equal operators.

        Without an epilogue there is a plan too, that of ``D = accum``; but operators say which of the two they serve.
        """
        tensors = (self.A.traits.key, self.B.traits.key, self.out.traits.key)
        plain = self.epilogue is None
        return (type(self), self.accumulator_type.name, tensors, self.plan.key, plain, self.bound.key, self.performance)


def _arguments_again(cls: type[GemmArguments], given: tuple[Any, ...]) -> GemmArguments:
    *positional, performance = given
    return cls(*positional, performance=performance)


def _dense(value: Any, name: str) -> DenseTensor:
    if isinstance(value, DenseTensor):
        return value
    if isinstance(value, Operand):
        raise OperandTypeError(f"{name} is a {type(value).__name__}, which no GEMM of epifuse takes.")
    return DenseTensor(value, name)


def _require_writeable(out: Any) -> None:
    if isinstance(out, np.ndarray) and not out.flags.writeable:
        raise OperandTypeError("out is a read-only array and cannot be an output.", advice="Pass a copy.")


def _halves_d(graph: Graph) -> bool:
    """Whether D has half the columns (a gated epilogue), so that ``out`` may be D itself."""
    return graph.stores.get("D", -1) in halved_nodes(graph)


def _check_shapes(a: tuple[int, ...], b: tuple[int, ...], out: tuple[int, ...], halved: bool) -> None:
    for name, shape, form in (("A", a, "(L=1, M, K)"), ("B", b, "(L=1, K, N)"), ("out", out, "(L=1, M, N)")):
        if len(shape) not in (2, 3):
            raise ShapeError(f"{name} must be a tensor of rank 2 or 3 {form}, got {shape}")
    if a[-1] != b[-2]:
        raise ShapeError(f"A's K dimension ({a[-1]}) must be equal to B's K dimension ({b[-2]}). A: {a}, B: {b}")
    if out[-2] != a[-2]:
        raise ShapeError(
            f"out's M dimension ({out[-2]}) must be equal to A's M dimension ({a[-2]}). A: {a}, out: {out}"
        )
    if out[-1] != b[-1] and not (halved and 2 * out[-1] == b[-1]):
        raise ShapeError(
            f"out's N dimension ({out[-1]}) must be equal to B's N dimension ({b[-1]}). B: {b}, out: {out}"
        )
    if a[:-2] != b[:-2]:
        raise ShapeError(f"A and B must have the same rank and batch dimension (if any). A: {a}, B: {b}")
    if out[:-2] != a[:-2]:
        raise ShapeError(f"out and A must have the same rank and batch dimension (if any). A: {a}, out: {out}")
