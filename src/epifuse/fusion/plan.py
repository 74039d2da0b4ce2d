# SPDX-License-Identifier: Apache-2.0
"""``EpiloguePlan``: what any kernel must know of an epilogue, and nothing else.

A plan names no operand of the user's: loads and stores carry positions, and a ``Binding`` beside the plan maps these to
the user's names. So two functions that mean the same have equal plans, whatever their names. Values are SSA slots,
numbered in the order loads, constants, computes.
"""

from __future__ import annotations

import enum
import hashlib
from functools import cached_property

from epifuse.dtypes import DType
from epifuse.fusion.ir.node import Attribute, Broadcast, Literal
from epifuse.records import dataclass


class Transport(enum.Enum):
    """How one tensor of an epilogue moves between global memory and registers."""

    TMA = "tma"
    SYNC_GMEM_LOAD = "sync_gmem_load"
    SYNC_GMEM_STORE = "sync_gmem_store"
    ASYNC_GMEM_LOAD = "async_gmem_load"


@dataclass(frozen=True, slots=True)
class Route:
    """A user's override of how an operand moves; None in a plan means that the kernel chooses."""

    via: Transport
    bits_per_copy: int | None = None


class Access(enum.Enum):
    """Where a load finds its value."""

    ACCUM = "accum"
    """The accumulator of the main loop."""
    ARGUMENT = "argument"
    """A number handed over at each run (another value compiles nothing)."""
    MEMORY = "memory"
    """A tensor, also one of a single element."""


class Rounding(enum.Enum):
    """What a store does to the value it takes."""

    NONE = "none"
    """The value has the store's dtype already, or widens without loss."""
    NEAREST_EVEN = "nearest_even"
    """One rounding to nearest, ties to even; overflow gives an infinity."""
    SATURATE = "saturate"
    """One rounding to nearest, ties to even, then clamped to the finite range; NaN stays NaN, or 0 in integers."""


@dataclass(frozen=True, slots=True)
class PlanLoad:
    """A value that comes from outside; ``operand`` is its position in ``Binding.loads`` (-1: the accumulator).

    ``dtype`` is that of the memory, ``compute_dtype`` that of the slot after widening.
    """

    slot: int
    access: Access
    operand: int
    broadcast: Broadcast
    dtype: DType
    compute_dtype: DType
    halved: bool = False
    route: Route | None = None


@dataclass(frozen=True, slots=True)
class PlanConstant:
    """A number folded into the plan."""

    slot: int
    literal: Literal
    compute_dtype: DType


@dataclass(frozen=True, slots=True)
class PlanCompute:
    """A primitive applied to earlier slots. ``compute_dtype`` is the result's; operands are widened to it before.

    Conditions (the first operand of ``where``, results of comparisons) have the dtype ``bool``; a comparison's operands
    are widened to their own common dtype, ``operand_dtype``.
    """

    slot: int
    primitive: str
    operands: tuple[int, ...]
    operand_dtype: DType
    compute_dtype: DType
    broadcast: Broadcast
    attributes: tuple[tuple[str, Attribute], ...] = ()
    halved: bool = False


@dataclass(frozen=True, slots=True)
class PlanReduce:
    """A fold of a slot over ``axes`` (the (l, m, n) that disappear) into a destination that is written whole.

    ``combine`` is ``sum``, ``max``, ``min`` or ``mean``; ``destination`` its position in ``Binding.stores``;
    ``accumulate_dtype`` the dtype in which partial results are kept.
    """

    operand: int
    combine: str
    axes: tuple[bool, bool, bool]
    accumulate_dtype: DType
    destination: int
    dtype: DType
    rounding: Rounding
    halved: bool = False


@dataclass(frozen=True, slots=True)
class PlanStore:
    """An elementwise output: a slot, rounded once, to a whole (L, M, N) destination (N/2 columns where halved)."""

    operand: int
    destination: int
    dtype: DType
    rounding: Rounding
    halved: bool = False
    route: Route | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """What ranking needs, per element of the accumulator: bytes from and to full tensors, operations by unit.

    A value with N/2 columns counts half. ``live_slots`` is the largest number of per-element values alive at once in
    plan order.
    """

    load_bytes: float
    store_bytes: float
    alu_operations: float
    fma_operations: float
    special_operations: float
    live_slots: int
    halved: bool


@dataclass(frozen=True)
class EpiloguePlan:
    """An epilogue as ordered tuples of frozen records; hashable, picklable, printable on one screen."""

    accumulator_dtype: DType
    loads: tuple[PlanLoad, ...]
    constants: tuple[PlanConstant, ...]
    computes: tuple[PlanCompute, ...]
    reduces: tuple[PlanReduce, ...]
    stores: tuple[PlanStore, ...]
    facts: Facts

    @cached_property
    def key(self) -> str:
        """64 hexadecimal digits that stand for the plan in every process and on disk."""
        parts = (self.accumulator_dtype, self.loads, self.constants, self.computes, self.reduces, self.stores)
        return hashlib.sha256(repr(parts).encode()).hexdigest()

    @cached_property
    def _hash(self) -> int:
        return int(self.key[:15], 16)  # the same in every process, so that it may be pickled along

    def __hash__(self) -> int:
        return self._hash

    @property
    def slots(self) -> int:
        """How many slots there are."""
        return len(self.loads) + len(self.constants) + len(self.computes)

    def __str__(self) -> str:
        from epifuse.fusion.ir.show import plan_text  # noqa: PLC0415 - show prints plans and so imports this module

        return plan_text(self)


@dataclass(frozen=True, slots=True)
class Binding:
    """The user's operand name for each ``PlanLoad.operand``, and output name for each destination."""

    loads: tuple[str, ...]
    stores: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OperandSpec:
    """All that a plan may depend on of an operand: no shape, no pointer, no value."""

    access: Access
    dtype: DType
    broadcast: Broadcast
    halved: bool = False
    route: Route | None = None


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """All that a plan may depend on of an output; ``axes`` are those a reduction folds, None elsewhere."""

    dtype: DType
    axes: tuple[bool, bool, bool] | None = None
    route: Route | None = None
