# SPDX-License-Identifier: Apache-2.0
"""The host's half of an epilogue: how each tensor is reached, and the numbers that a kernel takes for it.

Everything here is decided from a ``Binding``'s traits before anything is traced. Equal traits (and an equal plan) mean
the same device code: extents, strides, addresses and scalars are parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd
from typing import Any

import torch

from epifuse.binding import Bound
from epifuse.dtypes import FLOAT32, INT32, DType
from epifuse.errors import OperandError
from epifuse.fusion.passes.rounding import rounded_literal
from epifuse.fusion.plan import Access, EpiloguePlan, Route
from epifuse.records import NamedTuple
from epifuse.runtime.tensors import Traits

WIDEST_ACCESS_BYTES = 16
_CODES = {"float32": "f", "float64": "d", "int32": "i", "bool": "i"}


class TensorTraits(NamedTuple):
    """How a tensor of the epilogue is reached.

    ``varies`` are the (l, m, n) along which it has a stride; ``unit`` the one of m and n whose stride is 1, if any;
    ``vector_bytes`` the widest access along it that base, strides and extent allow.
    """

    dtype: DType
    varies: tuple[bool, bool, bool]
    unit: str | None
    vector_bytes: int

    def strided(self) -> tuple[bool, bool, bool]:
        """Along which of (l, m, n) the kernel takes a stride as a parameter."""
        l, m, n = self.varies
        return (l, m and self.unit != "m", n and self.unit != "n")

    def elements(self, axis: str) -> int:
        """Elements of one access along ``axis``."""
        return self.vector_bytes // self.dtype.bytes if self.unit == axis else 1


class EpilogueTraits(NamedTuple):
    """All that the device code depends on beside the plan: tensors by load and by destination, and the runs' axis."""

    loads: tuple[TensorTraits | None, ...]
    outputs: tuple[TensorTraits, ...]
    axis: str


class Param(NamedTuple):
    """One number that a kernel takes: ``code`` is its struct code (``q``, ``i``, ``f``, ``d``)."""

    name: str
    code: str


def traits_of(bound: Bound, batches: int = 1) -> EpilogueTraits:
    """The traits of an epilogue's tensors in a problem of so many batches.

    The axis is that of most bytes moved; gated plans need whole pairs of columns: n.
    """
    plan = bound.plan
    loads = []
    for load in plan.loads:
        if load.operand < 0:
            continue
        traits = bound.load_traits[load.operand]
        if load.access is not Access.MEMORY or traits is None:
            loads.append(None)
        else:
            loads.append(tensor_traits(*strides_of(traits, load.broadcast.value), traits, load.route))
    outputs = [TensorTraits(t.dtype, (False,) * 3, None, t.dtype.bytes) for t in bound.output_traits]
    for store in plan.stores:
        traits = bound.output_traits[store.destination]
        outputs[store.destination] = tensor_traits(*strides_of(traits, (True, True, True)), traits, store.route)
    axis = _axis(plan, loads, outputs)
    for reduce in plan.reduces:
        traits = bound.output_traits[reduce.destination]
        outputs[reduce.destination] = _by_elements(tensor_traits(*folded_strides(traits, reduce.axes, batches), traits))
    given = (load if load is None or load.unit == axis else _by_elements(load) for load in loads)
    return EpilogueTraits(tuple(given), tuple(outputs), axis)


def _by_elements(traits: TensorTraits) -> TensorTraits:
    """The traits where no access is wider than an element: so that no kernel is compiled anew for another extent."""
    return traits._replace(vector_bytes=traits.dtype.bytes)


def tensor_traits(
    extents: Sequence[int], strides: Sequence[int | None], traits: Traits, route: Route | None = None
) -> TensorTraits:
    """How a tensor is reached that has these extents and strides along (l, m, n), None where it does not vary."""
    unit = None
    for name, dim in (("n", 2), ("m", 1)):
        if unit is None and strides[dim] == 1 and extents[dim] > 1:
            unit = name
    if unit is None and strides[2] is not None and extents[2] == 1:
        unit = "n"
    if unit is None and strides[2] is None and strides[1] is not None and extents[1] == 1:
        unit = "m"
    size = traits.dtype.bytes
    common = traits.alignment_bytes
    for dim, name in enumerate("lmn"):
        stride = strides[dim]
        if stride is not None and (extents[dim] > 1 or name == unit):
            common = gcd(common, (extents[dim] if name == unit else stride) * size)
    width = min(common & -common, WIDEST_ACCESS_BYTES) if unit else size
    if route is not None and route.bits_per_copy is not None:
        width = min(width, route.bits_per_copy // 8)
    varies = tuple(stride is not None for stride in strides)
    return TensorTraits(traits.dtype, (varies[0], varies[1], varies[2]), unit, max(width, size))


def strides_of(traits: Traits, varies: Sequence[bool]) -> tuple[list[int], list[int | None]]:
    """Extents and strides (elements) along (l, m, n) of a tensor aligned right; 1 and None where it does not vary.

    A vector that varies along m is a column.
    """
    rank = len(traits.shape)
    if rank == 1 and varies[1]:
        return _placed(traits, {1: 0})
    return _placed(traits, {dim: dim - 3 + rank for dim in range(3) if varies[dim]})


def folded_strides(traits: Traits, axes: Sequence[bool], batches: int) -> tuple[list[int], list[int | None]]:
    """As ``strides_of``, for a reduction's destination, which has the folded axes with size 1 or lacks them."""
    shape, rank = traits.shape, len(traits.shape)
    kept = [dim for dim in range(3) if not axes[dim]]
    in_place = rank == 3 or (rank == 2 and batches == 1)
    if in_place and all(shape[dim - 3 + rank] == 1 for dim in range(3 - rank, 3) if axes[dim]):
        return _placed(traits, {dim: dim - 3 + rank for dim in kept})
    return _placed(traits, {dim: place for place, dim in enumerate(kept[len(kept) - rank :])} if rank else {})


def _placed(traits: Traits, places: dict[int, int]) -> tuple[list[int], list[int | None]]:
    """``places`` maps (l, m, n) to the tensor's own axes; negative ones are not there."""
    extents: list[int] = [1, 1, 1]
    strides: list[int | None] = [None, None, None]
    for dim, place in places.items():
        if place >= 0:
            extents[dim], strides[dim] = traits.shape[place], traits.strides[place]
    return extents, strides


def _axis(plan: EpiloguePlan, loads: Sequence[TensorTraits | None], outputs: Sequence[TensorTraits]) -> str:
    if plan.facts.halved:
        return "n"
    balance = 0
    for tensor in [*loads, *outputs]:
        if tensor is not None and tensor.varies[1] and tensor.varies[2] and tensor.unit is not None:
            balance += tensor.dtype.bytes if tensor.unit == "n" else -tensor.dtype.bytes
    return "n" if balance >= 0 else "m"


def parameters(plan: EpiloguePlan, traits: EpilogueTraits) -> tuple[Param, ...]:
    """The parameters that a kernel takes for the epilogue, in order."""
    params: list[Param] = []
    operands = [load for load in plan.loads if load.operand >= 0]
    for load, tensor in zip(operands, traits.loads, strict=True):
        name = f"load{load.operand}"
        if tensor is None:
            params.append(Param(name, _CODES[load.compute_dtype.name]))
        else:
            params += _tensor_parameters(name, tensor)
    for index, tensor in enumerate(traits.outputs):
        params += _tensor_parameters(f"out{index}", tensor)
    if plan.reduces:
        params += [Param("workspace", "q"), Param("tiles_m", "i"), Param("tiles_n", "i")]
    return tuple(params)


def _tensor_parameters(name: str, tensor: TensorTraits) -> list[Param]:
    strides = [Param(f"{name}.stride_{d}", "q") for d, has in zip("lmn", tensor.strided(), strict=True) if has]
    return [Param(name, "q"), *strides]


def values(bound: Bound, traits: EpilogueTraits, batches: int = 1) -> list[int | float]:
    """The numbers of ``parameters`` for these tensors, all but those of a reduction's workspace."""
    numbers: list[int | float] = []
    operands = [load for load in bound.plan.loads if load.operand >= 0]
    for load, tensor in zip(operands, traits.loads, strict=True):
        value, view = bound.loads[load.operand], bound.load_traits[load.operand]
        if tensor is None:
            numbers.append(number_of(value, load.compute_dtype))
        else:
            assert view is not None
            numbers += _tensor_values(value, tensor, strides_of(view, tensor.varies)[1])
    axes = {reduce.destination: reduce.axes for reduce in bound.plan.reduces}
    for index, tensor in enumerate(traits.outputs):
        view = bound.output_traits[index]
        placed = folded_strides(view, axes[index], batches) if index in axes else strides_of(view, tensor.varies)
        numbers += _tensor_values(bound.outputs[index], tensor, placed[1])
    return numbers


def _tensor_values(tensor: Any, how: TensorTraits, strides: Sequence[int | None]) -> list[int | float]:
    return [tensor.data_ptr(), *(s or 0 for s, has in zip(strides, how.strided(), strict=True) if has)]


def number_of(value: Any, dtype: DType) -> int | float:
    """A scalar operand as the number that a kernel takes for a slot of that dtype: rounded once, bool as 0 or 1.

    Raises:
        OperandError: an integer that does not fit int32, in which the epilogue computes with it.
    """
    number = value.item() if isinstance(value, torch.Tensor) else value
    if dtype.is_float:
        if dtype.bits == 32 and (type(number) is not float or abs(number) > FLOAT32.highest):
            return rounded_literal(number, dtype).value
        return float(number)
    if dtype.is_integer and not INT32.lowest <= number <= INT32.highest:
        raise OperandError(
            f"The integer operand {number} does not fit int32, in which this epilogue computes.",
            advice="Pass it as a float to leave integer arithmetic.",
        )
    return int(number)


def wanted_run(plan: EpiloguePlan, traits: EpilogueTraits) -> int:
    """The run length that serves the plan best: 16 bytes of the narrowest full tensor, twice as long for pairs."""
    sizes = [traits.outputs[store.destination].dtype.bytes for store in plan.stores]
    sizes += [t.dtype.bytes for t in traits.loads if t is not None and t.varies[1] and t.varies[2]]
    width = max(4, WIDEST_ACCESS_BYTES // max(min(sizes, default=4), 2))
    return min(2 * width, 16) if plan.facts.halved else width
