# SPDX-License-Identifier: Apache-2.0
"""The host's half of an epilogue: how each tensor is reached, and the numbers that a kernel takes for it.

Everything here is decided from a ``Binding``'s traits before anything is traced. Equal traits (and an equal plan) mean
the same device code: extents, strides, addresses and scalars are parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd
from typing import Any

from epifuse.binding import Bound
from epifuse.dtypes import DType
from epifuse.fusion.plan import Access, EpiloguePlan
from epifuse.runtime.tensors import Traits

WIDEST_ACCESS_BYTES = 16


@dataclass(frozen=True, slots=True)
class TensorTraits:
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


@dataclass(frozen=True, slots=True)
class EpilogueTraits:
    """All that the device code depends on beside the plan: tensors by load and by destination, and the runs' axis."""

    loads: tuple[TensorTraits | None, ...]
    outputs: tuple[TensorTraits, ...]
    axis: str


@dataclass(frozen=True, slots=True)
class Param:
    """One number that a kernel takes: ``code`` is its struct code (``q``, ``i``, ``f``, ``d``)."""

    name: str
    code: str


def traits_of(bound: Bound) -> EpilogueTraits:
    """The traits of an epilogue's tensors. The axis is that of most bytes moved; gated plans need whole pairs: n."""
    plan = bound.plan
    loads = []
    for load in plan.loads:
        if load.operand < 0:
            continue
        traits = bound.load_traits[load.operand]
        if load.access is not Access.MEMORY or traits is None:
            loads.append(None)
        else:
            loads.append(tensor_traits(traits, load.broadcast.value))
    outputs = [TensorTraits(t.dtype, (False,) * 3, None, t.dtype.bytes) for t in bound.output_traits]
    for store in plan.stores:
        outputs[store.destination] = tensor_traits(bound.output_traits[store.destination], (True, True, True))
    for reduce in plan.reduces:
        kept = tuple(not axis for axis in reduce.axes)
        outputs[reduce.destination] = tensor_traits(bound.output_traits[reduce.destination], kept, squeezed=True)
    return EpilogueTraits(tuple(loads), tuple(outputs), _axis(plan, loads, outputs))


def tensor_traits(traits: Traits, varies: Sequence[bool], *, squeezed: bool = False) -> TensorTraits:
    """How a tensor is reached that varies along these of (l, m, n); see ``strides_of`` for ``squeezed``."""
    extents, strides = strides_of(traits, varies, squeezed=squeezed)
    unit = None
    for name, dim in (("n", 2), ("m", 1)):
        if unit is None and varies[dim] and strides[dim] == 1 and extents[dim] > 1:
            unit = name
    if unit is None and varies[2] and extents[2] == 1:
        unit = "n"
    size = traits.dtype.bytes
    common = traits.alignment_bytes
    for dim, name in enumerate("lmn"):
        if varies[dim] and extents[dim] > 1:
            common = gcd(common, (extents[dim] if name == unit else strides[dim]) * size)
        elif varies[dim] and name == unit:
            common = size
    width = min(common & -common, WIDEST_ACCESS_BYTES) if unit else size
    return TensorTraits(traits.dtype, (varies[0], varies[1], varies[2]), unit, max(width, size))


def strides_of(traits: Traits, varies: Sequence[bool], *, squeezed: bool = False) -> tuple[list[int], list[int]]:
    """Extents and strides (elements) along (l, m, n); 1 and 0 where the tensor does not vary.

    A reduction's destination may lack the folded dims (``squeezed``): then its dims are those kept, in order.
    """
    extents, strides = [1, 1, 1], [0, 0, 0]
    rank = len(traits.shape)
    kept = [dim for dim in range(3) if varies[dim]]
    if squeezed and rank != 3 and rank == len(kept):
        places = dict(zip(kept, range(rank), strict=True))
    else:
        places = {dim: dim - 3 + rank for dim in kept if dim - 3 + rank >= 0}
    for dim, place in places.items():
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
            params.append(Param(name, {"float64": "d", "int32": "i"}.get(load.compute_dtype.name, "f")))
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


def values(bound: Bound, traits: EpilogueTraits) -> list[int | float]:
    """The numbers of ``parameters`` for these tensors, all but those of a reduction's workspace."""
    numbers: list[int | float] = []
    operands = [load for load in bound.plan.loads if load.operand >= 0]
    for load, tensor in zip(operands, traits.loads, strict=True):
        value = bound.loads[load.operand]
        if tensor is None:
            integer = load.compute_dtype.name == "int32"
            number = value.item() if hasattr(value, "item") else value
            numbers.append(int(number) if integer else float(number))
        else:
            numbers += _tensor_values(bound.load_traits[load.operand], value, tensor, squeezed=False)
    folded = {reduce.destination for reduce in bound.plan.reduces}
    for index, tensor in enumerate(traits.outputs):
        squeezed = index in folded
        numbers += _tensor_values(bound.output_traits[index], bound.outputs[index], tensor, squeezed=squeezed)
    return numbers


def _tensor_values(traits: Traits | None, tensor: Any, how: TensorTraits, *, squeezed: bool) -> list[int | float]:
    assert traits is not None
    _, strides = strides_of(traits, how.varies, squeezed=squeezed)
    return [tensor.data_ptr(), *(s for s, has in zip(strides, how.strided(), strict=True) if has)]


def wanted_run(plan: EpiloguePlan, traits: EpilogueTraits) -> int:
    """The run length that serves the plan best: 16 bytes of the narrowest full tensor, 2 at least for pairs."""
    sizes = [traits.outputs[store.destination].dtype.bytes for store in plan.stores]
    sizes += [t.dtype.bytes for t in traits.loads if t is not None and t.varies[1] and t.varies[2]]
    width = max(4, 16 // max(min(sizes, default=4), 2))
    return max(width, 2)
