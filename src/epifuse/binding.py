# SPDX-License-Identifier: Apache-2.0
"""Binds an epilogue's graph to the tensors of one GEMM: broadcasts, devices, overlaps, and the plan that follows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import torch

from epifuse import dtypes
from epifuse.dtypes import DType
from epifuse.errors import OperandError, OverlapError
from epifuse.fusion import passes
from epifuse.fusion.ir import infer
from epifuse.fusion.ir.graph import Graph
from epifuse.fusion.ir.infer import Problem, float_dtype
from epifuse.fusion.ir.node import Broadcast
from epifuse.fusion.plan import Access, Binding, EpiloguePlan, OperandSpec, OutputSpec, Route
from epifuse.records import dataclass
from epifuse.runtime.tensors import Number, Traits, overlap, overlaps_itself, same_view

View: TypeAlias = tuple[torch.Tensor, Traits] | Number
"""An operand: a torch view of its memory with its traits, or a number."""


@dataclass(frozen=True, slots=True)
class Bound:
    """A plan with its tensors. ``loads`` and ``outputs`` are in the plan's order, ``names`` tells whose they are."""

    plan: EpiloguePlan
    names: Binding
    loads: tuple[torch.Tensor | Number, ...]
    load_traits: tuple[Traits | None, ...]
    outputs: tuple[torch.Tensor, ...]
    output_traits: tuple[Traits, ...]

    @property
    def key(self) -> tuple[Any, ...]:
        """Traits of all loads and outputs, without addresses and values."""
        return (
            tuple(None if t is None else t.key for t in self.load_traits),
            tuple(t.key for t in self.output_traits),
        )


def bind(
    graph: Graph,
    views: Mapping[str, View],
    routes: Mapping[str, Route],
    problem: Problem,
    accumulator: DType,
    main: Sequence[Traits],
) -> Bound:
    """The plan of ``graph`` for these operands, and the operands in its order.

    ``main`` are the traits of A and B: the device that counts, and memory that no output may touch.

    Raises:
        OperandError: an operand does not broadcast to (L, M, N), an output has another shape, a device differs.
        OverlapError: an output overlaps itself, another output, A, B, or an operand other than position by position.
    """
    device = main[0].device
    halved = infer.halved_nodes(graph)
    operands = []
    for name, index in graph.loads.items():
        operands.append((name, _operand_spec(name, views[name], problem, accumulator, device, index in halved, routes)))
    if graph.reductions:
        infer.check_reductions(graph, {name: spec.broadcast for name, spec in operands}, problem)
    outputs = []
    for name, index in graph.stores.items():
        outputs.append((name, _output_spec(graph, name, views[name], problem, index in halved, routes)))
    plan, names = passes.lower(graph, accumulator, tuple(operands), tuple(outputs))
    loads = [views[name] for name in names.loads]
    load_traits = tuple(v[1] if isinstance(v, tuple) else None for v in loads)
    stores = [views[name] for name in names.stores]
    output_traits = tuple(v[1] for v in stores if isinstance(v, tuple))
    _check_devices([("B", main[1]), *zip(names.stores, output_traits, strict=True)], device)
    tensors = [(n, t) for n, t in zip(names.loads, load_traits, strict=True) if t and not _host_scalar(t, device)]
    _check_devices(tensors, device)
    _check_overlaps(plan, names, load_traits, output_traits, main)
    return Bound(
        plan,
        names,
        tuple(v[0] if isinstance(v, tuple) else v for v in loads),
        load_traits,
        tuple(v[0] for v in stores if isinstance(v, tuple)),
        output_traits,
    )


def _operand_spec(
    name: str,
    view: View,
    problem: Problem,
    accumulator: DType,
    device: str,
    halved: bool,
    routes: Mapping[str, Route],
) -> OperandSpec:
    route = routes.get(name)
    if not isinstance(view, tuple):
        return OperandSpec(Access.ARGUMENT, _number_dtype(name, view, accumulator), Broadcast.SCALAR, halved, route)
    traits = view[1]
    broadcast = infer.broadcast_of(name, traits.shape, traits.strides, problem, halved)
    if traits.device == "cpu" and traits.numel == 1 and traits.dtype in _WIDE:
        # The dtypes of Python's and numpy's own numbers: taken as such a number, which is read at each run.
        whole = traits.dtype is dtypes.INT64 and accumulator is dtypes.INT32
        dtype = dtypes.INT32 if whole else float_dtype(accumulator)
        return OperandSpec(Access.ARGUMENT, dtype, broadcast, halved, route)
    access = Access.ARGUMENT if _host_scalar(traits, device) else Access.MEMORY
    return OperandSpec(access, traits.dtype, broadcast, halved, route)


_WIDE = (dtypes.FLOAT64, dtypes.INT64)


def _number_dtype(name: str, value: Number, accumulator: DType) -> DType:
    """The dtype in which a Python number enters the epilogue."""
    if not isinstance(value, int):
        return float_dtype(accumulator)
    if accumulator is dtypes.INT32:
        if not dtypes.INT32.lowest <= value <= dtypes.INT32.highest:
            raise OperandError(
                f"{name}={_shown(value)} does not fit int32, in which this epilogue computes.",
                advice=f"Pass it as a float ({name}=float(...)) to leave integer arithmetic.",
            )
        return dtypes.INT32
    if abs(value) > dtypes.FLOAT64.highest:
        raise OperandError(f"{name}={_shown(value)} is beyond the range of floating-point numbers.", advice="")
    return float_dtype(accumulator)


def _shown(value: int) -> str:
    return str(value) if value.bit_length() <= 128 else f"an integer of {value.bit_length()} bits"


def _host_scalar(traits: Traits, device: str) -> bool:
    """Whether a tensor is taken as a number: one element on the CPU beside operands on a GPU."""
    return traits.device == "cpu" and device != "cpu" and traits.numel == 1


def _output_spec(
    graph: Graph, name: str, view: View, problem: Problem, halved: bool, routes: Mapping[str, Route]
) -> OutputSpec:
    assert isinstance(view, tuple)
    traits = view[1]
    node = graph.reductions.get(name)
    axes = None
    if node is None:
        infer.check_output(name, traits.shape, problem, halved)
    else:
        axes = infer.reduction_axes(name, node, traits.shape, problem, halved)
    return OutputSpec(traits.dtype, axes, routes.get(name))


def _check_devices(tensors: Sequence[tuple[str, Traits]], device: str) -> None:
    for name, traits in tensors:
        if traits.device != device:
            raise OperandError(
                f"{name} is on {traits.device} but A is on {device}.",
                advice=f"Move it first: {name}.to({device!r}). (An operand of one element may stay on the CPU.)",
            )


def _check_overlaps(
    plan: EpiloguePlan,
    names: Binding,
    loads: Sequence[Traits | None],
    outputs: Sequence[Traits],
    main: Sequence[Traits],
) -> None:
    elementwise = {store.destination for store in plan.stores}
    for position, (name, out) in enumerate(zip(names.stores, outputs, strict=True)):
        if overlaps_itself(out):
            raise OverlapError(f"{name} overlaps itself: shape {out.shape}, strides {out.strides}.")
        for earlier in range(position):
            if overlap(out, outputs[earlier]):
                raise OverlapError(f"Outputs {names.stores[earlier]} and {name} share memory.")
        for other, traits in zip(("A", "B"), main, strict=True):
            if overlap(out, traits):
                raise OverlapError(f"Output {name} shares memory with {other}, which is read until the end.")
        for other, load in zip(names.loads, loads, strict=True):
            if load is None or not overlap(out, load):
                continue
            if position not in elementwise or not same_view(out, load):
                raise OverlapError(
                    f"Output {name} shares memory with operand {other}, whose elements other positions still read.",
                )
