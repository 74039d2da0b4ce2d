# SPDX-License-Identifier: Apache-2.0
"""``evaluate``: an ``EpiloguePlan`` on torch tensors. It sees no graph, no function and no name of the user's."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch

from epifuse.dtypes import BOOL, INT32, INT64, DType
from epifuse.errors import OperandError
from epifuse.fusion.plan import Access, EpiloguePlan, PlanCompute, PlanLoad, PlanReduce, PlanStore
from epifuse.runtime.rounding import round_to
from epifuse_cpu.primitives import emit
from epifuse_cpu.reduce import reduce

Number = int | float


def evaluate(plan: EpiloguePlan, accum: torch.Tensor, loads: Sequence[torch.Tensor | Number]) -> list[torch.Tensor]:
    """The plan's outputs, one a destination, each rounded once to its dtype.

    ``accum`` is (L, M, N) in the accumulator's dtype, ``loads`` the operands by ``PlanLoad.operand``, in the shapes in
    which the user gave them. Elementwise outputs are (L, M, N) (N/2 columns where halved) and may be expanded views;
    reductions keep their folded axes with size 1. No output shares memory with an operand.
    """
    return _Evaluation(plan, accum, loads).outputs()


class _Evaluation:
    """One walk through a plan; a slot's tensor is dropped after its last use."""

    def __init__(self, plan: EpiloguePlan, accum: torch.Tensor, loads: Sequence[torch.Tensor | Number]) -> None:
        self.plan, self.accum, self.operands = plan, accum, loads
        self.values: dict[int, torch.Tensor] = {}
        self.results: dict[int, torch.Tensor] = {}
        self.last_use = _last_uses(plan)
        self.takers: dict[int, list[PlanReduce | PlanStore]] = defaultdict(list)
        takers: list[PlanReduce | PlanStore] = [*plan.reduces, *plan.stores]
        for taker in takers:
            self.takers[taker.operand].append(taker)
        self.borrowed = {_memory(x) for x in (accum, *loads) if isinstance(x, torch.Tensor)}

    def outputs(self) -> list[torch.Tensor]:
        """Walk the tuples in order."""
        for load in self.plan.loads:
            self._settle(load.slot, -1, self._load(load))
        for constant in self.plan.constants:
            self._settle(constant.slot, -1, _number(constant.literal.value, constant.compute_dtype, self.accum))
        for position, compute in enumerate(self.plan.computes):
            self._settle(compute.slot, position, self._compute(compute))
            for slot in set(compute.operands):
                if self.last_use[slot] == position:
                    self.values.pop(slot, None)
        return [self.results[destination] for destination in range(len(self.results))]

    def _settle(self, slot: int, position: int, value: torch.Tensor) -> None:
        """Serve the stores and reductions that wait for a slot; keep it while computes will need it."""
        for taker in self.takers.get(slot, ()):
            full = value.expand(self._shape(taker.halved))
            if isinstance(taker, PlanReduce):
                self.results[taker.destination] = round_to(reduce(full, taker.combine, taker.axes), taker.dtype)
                continue
            rounded = round_to(value, taker.dtype)
            if _memory(rounded) in self.borrowed:  # an output may be the very memory of an operand still to be stored
                rounded = rounded.clone()
            self.results[taker.destination] = rounded.expand(full.shape)
        if self.last_use.get(slot, -1) > position:
            self.values[slot] = value

    def _shape(self, halved: bool) -> tuple[int, int, int]:
        l, m, n = self.accum.shape
        return (l, m, n // 2 if halved else n)

    def _load(self, load: PlanLoad) -> torch.Tensor:
        if load.access is Access.ACCUM:
            return round_to(self.accum, load.compute_dtype)
        operand = self.operands[load.operand]
        if isinstance(operand, torch.Tensor):
            placed = _placed(operand.detach(), load, self._shape(load.halved))
            if operand.dtype == torch.int64 and load.compute_dtype is INT32:
                _require_int32(placed)
            return round_to(placed, load.compute_dtype)
        return round_to(_number(operand, load.dtype, self.accum), load.compute_dtype)

    def _compute(self, compute: PlanCompute) -> torch.Tensor:
        operands = [round_to(self.values[slot], compute.operand_dtype) for slot in compute.operands]
        if compute.primitive == "where":
            operands[0] = round_to(self.values[compute.operands[0]], BOOL)
        return round_to(emit(compute.primitive, operands, dict(compute.attributes)), compute.compute_dtype)


def _last_uses(plan: EpiloguePlan) -> dict[int, int]:
    """The position among the computes at which each slot is used for the last time; slots that none uses are absent."""
    return {slot: position for position, compute in enumerate(plan.computes) for slot in compute.operands}


def _memory(x: torch.Tensor) -> int:
    return x.untyped_storage().data_ptr()


def _placed(x: torch.Tensor, load: PlanLoad, shape: tuple[int, int, int]) -> torch.Tensor:
    """An operand as a view (l|1, m|1, n|1) of the problem, without the axes along which it does not vary."""
    if x.numel() == 1:
        return x.reshape(1, 1, 1)
    varies = load.broadcast
    if x.dim() == 1 and ((varies.m and not varies.n) or x.shape[0] != shape[2]):
        x = x.unsqueeze(1)  # a vector of M elements is a column
    x = x[(None,) * (3 - x.dim())]
    for axis, along in enumerate(varies.value):
        if not along and x.shape[axis] > 1:
            x = x.narrow(axis, 0, 1)
    return x


def _require_int32(number: torch.Tensor) -> None:
    """A number that is read at each run must fit as one that was given in Python.

    Raises:
        OperandError: it does not.
    """
    if number.numel() and not INT32.lowest <= number.item() <= INT32.highest:
        raise OperandError(
            f"The integer operand {number.item()} does not fit int32, in which this epilogue computes.",
            advice="Pass it as a float to leave integer arithmetic.",
        )


def _number(value: Number, dtype: DType, like: torch.Tensor) -> torch.Tensor:
    """A number as (1, 1, 1), rounded once to ``dtype``; integers beyond int64 go by way of float64."""
    if isinstance(value, int) and INT64.lowest <= value < -INT64.lowest:
        exact = torch.full((1, 1, 1), value, dtype=torch.int64, device=like.device)
    else:
        exact = torch.full((1, 1, 1), float(value), dtype=torch.float64, device=like.device)
    return round_to(exact, dtype)
