# SPDX-License-Identifier: Apache-2.0
"""How each operation of a plan is computed: in full, or by shorter instructions that lose nothing that is kept.

A table that needs no compiler. Short forms are for plans whose every output has 16 bits or fewer (design: approximate
instructions). Instructions that flush subnormal numbers spare the scaling of operand and result. They serve where none
can occur, and where one counts for nothing: a result of ``exp`` that is only added to a number of normal size, or only
stored in a dtype whose smallest number is larger.
"""

from __future__ import annotations

import enum
import math
from collections import defaultdict
from dataclasses import dataclass

from epifuse.dtypes import BFLOAT16, FLOAT32
from epifuse.fusion.plan import EpiloguePlan, PlanCompute
from epifuse_cutedsl.fuse.ranges import ANY, Range, ranges_of

_HIDES_SUBNORMALS = 2.0**-100
"""Added to a float32 of at least this size, a subnormal one is less than half a unit in the last place."""


_NORMAL: Range = (2.0**-100, 2.0**100)
"""Well inside of the range in which neither a number nor its reciprocal is subnormal."""


class Precision(enum.Enum):
    """Which form of a primitive is emitted."""

    FULL = "full"
    SHORT = "short"
    FLUSHED = "flushed"
    """As SHORT; subnormal operands and results become zero."""


@dataclass(frozen=True, slots=True)
class Way:
    """How one operation is computed: its precision and operands, and numbers that go with them.

    ``operands`` are the plan's but where a product with a constant goes into the scaling of ``exp``, a constant is
    replaced by ``addend``, or ``form`` takes others. Without any, nothing reads the result and none is computed.
    """

    precision: Precision
    operands: tuple[int, ...]
    factor: float = 1.0
    """The operand is multiplied by it,"""
    addend: float = 0.0
    """then this is added to it,"""
    scale: float = 1.0
    """and the result is multiplied by this."""
    form: str = ""
    """Another function of ``fuse.short``, in the place of the primitive's."""


_LIFT = 14
"""``1 / (1 + e)`` is computed as ``2^-14 / (2^-14 + 2^-14 e)``: three instructions fewer an element than a reciprocal
that may be subnormal. With the power's exponent lowered by 14 (which an addition inside of a fused one does for
nothing), the reciprocal is normal and the last product has all results that bfloat16 holds, its subnormal ones too. A
larger number takes bits of the exponent: sigmoid is off by 1.7e-7 at most with 14, by 2.2e-7 with 16.

``x / (1 + 2^(x w))``, as gelu's formula with tanh has it, is flushed instead where |w| is at least ``_STEEP``: with a
reciprocal below 2^-126, the product is below 1e-36. That is one product an element less, 1 % of gelu's time at 8192 x
8192 x 512 on an H200."""
_LIFTED = (2.0**-8, 2.0**8)
"""Numbers in the place of that 1."""
_STEEP = 2.0

_DIVIDING = ("reciprocal", "div")
_JUDGED = (*_DIVIDING, "sqrt", "rsqrt", "log", "log2")


def is_fast(plan: EpiloguePlan) -> bool:
    """Whether every output is a float of 16 bits or fewer, and nothing is reduced."""
    outputs = [store.dtype for store in plan.stores]
    return not plan.reduces and all(d.is_float and d.bits <= 16 for d in outputs)


def ways_of(plan: EpiloguePlan, *, beside_wgmma: bool = False) -> tuple[Way, ...]:
    """How each of the plan's computes is emitted, in their order.

    ``beside_wgmma``: the tensor cores work on registers meanwhile, and wait where sums of products are computed.
    """
    if not is_fast(plan):
        return tuple(Way(Precision.FULL, step.operands) for step in plan.computes)
    uses = _Uses(plan, beside_wgmma)
    return tuple(uses.way(step) for step in plan.computes)


class _Uses:
    """What becomes of each slot of a plan."""

    def __init__(self, plan: EpiloguePlan, beside_wgmma: bool) -> None:
        self._product = "ndtr_product_beside_wgmma" if beside_wgmma else "ndtr_product"
        self._constants = {c.slot: float(c.literal.value) for c in plan.constants}
        self._by_slot = {step.slot: step for step in plan.computes}
        self._readers: dict[int, list[PlanCompute]] = defaultdict(list)
        for step in plan.computes:
            for operand in step.operands:
                self._readers[operand].append(step)
        self._stored = {store.operand for store in plan.stores if store.dtype is BFLOAT16}
        self._outputs = {store.operand for store in plan.stores}
        self._ranges = ranges_of(plan)
        self._lifted: dict[int, Way] = {}
        for step in plan.computes:
            self._lift(step)
            self._join(step)

    def way(self, step: PlanCompute) -> Way:
        if step.operand_dtype is not FLOAT32:
            return Way(Precision.FULL, step.operands)
        if step.slot in self._lifted:
            return self._lifted[step.slot]
        if step.primitive in ("exp", "exp2"):
            source, factor = self._unscaled(step.operands[0])
            flushed = self._is_only_added(step.slot)
            return Way(Precision.FLUSHED if flushed else Precision.SHORT, (source,), factor)
        flushed = step.primitive in _JUDGED and self._is_normal(step)
        return Way(Precision.FLUSHED if flushed else Precision.SHORT, step.operands)

    def _lift(self, step: PlanCompute) -> None:
        """The ways of a reciprocal, a sum and a power, where ``step`` is ``1 / (c + e)``, the only reader of both.

        And those of ``x / (1 + exp(y))``, which becomes a product: of the sums of 1 and such a power, only 2 and 1 have
        quotients that could lie halfway between two outputs, and these are exact.
        """
        total = self._only_read_by(step, "reciprocal", 0, ("add",)) or self._only_read_by(step, "div", 1, ("add",))
        if total is None:
            return
        constants = [i for i, operand in enumerate(total.operands) if operand in self._constants]
        if len(constants) != 1:
            return
        added = self._constants[total.operands[constants[0]]]
        divided = step.primitive == "div"
        power = self._only_read_by(total, "add", 1 - constants[0], ("exp",) if divided else ("exp", "exp2"))
        if power is None or not _LIFTED[0] <= added <= _LIFTED[1] or (divided and added != 1.0):
            return
        source, factor = self._unscaled(power.operands[0])
        lift = 0 if self._vanishes(step, power) else _LIFT
        self._lifted[power.slot] = Way(Precision.FLUSHED, (source,), factor, addend=-float(lift))
        self._lifted[total.slot] = Way(Precision.FLUSHED, (power.slot,), addend=added * 2.0**-lift)
        self._lifted[step.slot] = Way(Precision.FLUSHED, step.operands, scale=2.0**-lift)

    def _vanishes(self, step: PlanCompute, power: PlanCompute) -> bool:
        """Whether all that becomes of ``step``, the reciprocal of a sum with ``power``, is a product with a factor of
        the power's exponent, whose other factor is large."""
        readers, exponent = self._readers[step.slot], self._by_slot.get(power.operands[0])
        if step.slot in self._outputs or [each.primitive for each in readers] != ["mul"] or power.primitive != "exp2":
            return False
        if exponent is None or exponent.primitive != "mul" or exponent.compute_dtype is not FLOAT32:
            return False
        first, second = exponent.operands
        others = {first: second, second: first}
        slopes = [others[each] for each in readers[0].operands if each in others]
        low, high = self._ranges.get(slopes[0], ANY) if slopes else ANY
        return low >= _STEEP or high <= -_STEEP

    def _join(self, step: PlanCompute) -> None:
        """The ways of ``x * ndtr(x)`` where nothing else reads the factor: one function.

        Not of constants: a product with one goes into the scaling of ``exp``, which then reads the factor.
        """
        for place in range(2):
            factor = self._only_read_by(step, "mul", place, ("ndtr",))
            if factor is None or factor.operands[0] in self._constants:
                continue
            if factor.operands[0] == step.operands[1 - place]:
                self._lifted[factor.slot] = Way(Precision.SHORT, ())
                self._lifted[step.slot] = Way(Precision.SHORT, factor.operands, form=self._product)

    def _only_read_by(self, step: PlanCompute, name: str, place: int, of: tuple[str, ...]) -> PlanCompute | None:
        """The compute, one of the primitives ``of``, behind an operand of ``step``, if that is a ``name`` and reads it
        alone."""
        if step.primitive != name or step.operand_dtype is not FLOAT32:
            return None
        found = self._by_slot.get(step.operands[place])
        if found is None or found.primitive not in of or found.operand_dtype is not FLOAT32:
            return None
        alone = self._readers[found.slot] == [step] and found.slot not in self._outputs
        return found if alone else None

    def _is_normal(self, step: PlanCompute) -> bool:
        """Whether the operand of a root or logarithm, or the divisor of a quotient, is a normal positive number."""
        operand = step.operands[-1]
        low, high = self._ranges.get(operand, ANY)
        if low < _NORMAL[0]:
            return False
        return step.primitive not in _DIVIDING or high <= _NORMAL[1]

    def _unscaled(self, slot: int) -> tuple[int, float]:
        """``slot`` as another one times a number: products with constants, and negations, are taken apart."""
        factor = 1.0
        while (step := self._by_slot.get(slot)) is not None and step.compute_dtype is FLOAT32:
            if step.primitive == "neg":
                slot, factor = step.operands[0], -factor
                continue
            known = [i for i, operand in enumerate(step.operands) if operand in self._constants]
            if step.primitive != "mul" or len(known) != 1:
                break
            product = factor * self._constants[step.operands[known[0]]]
            if not 2.0**-60 < math.fabs(product) < 2.0**60:
                break
            slot, factor = step.operands[1 - known[0]], product
        return slot, factor

    def _addend(self, step: PlanCompute, slot: int) -> float:
        """The constant that ``step`` adds ``slot`` to, or takes it or takes from it; 0 where it does not."""
        if step.primitive not in ("add", "sub") or step.compute_dtype is not FLOAT32:
            return 0.0
        other = step.operands[1] if step.operands[0] == slot else step.operands[0]
        return self._constants.get(other, 0.0)

    def _is_only_added(self, slot: int) -> bool:
        if slot in self._stored:
            return False
        return all(math.fabs(self._addend(reader, slot)) >= _HIDES_SUBNORMALS for reader in self._readers[slot])
