# SPDX-License-Identifier: Apache-2.0
"""Epilogues bound to dtypes and broadcasts without any tensor, for the tests of inference, passes and plans."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from epifuse import dtypes
from epifuse.fusion import passes
from epifuse.fusion.frontend import parse
from epifuse.fusion.ir.graph import Graph
from epifuse.fusion.ir.node import Broadcast
from epifuse.fusion.plan import Access, Binding, EpiloguePlan, OperandSpec, OutputSpec


def operand(text: str) -> OperandSpec:
    """``"f16 row"``, ``"i32 matrix halved"``, ``"f32 argument"``."""
    dtype, kind, *rest = text.split()
    if kind == "argument":
        return OperandSpec(Access.ARGUMENT, dtypes.of(dtype), Broadcast.SCALAR)
    return OperandSpec(Access.MEMORY, dtypes.of(dtype), Broadcast[kind.upper()], halved="halved" in rest)


def output(text: str) -> OutputSpec:
    """``"f16"``, ``"f32 over n"``."""
    dtype, _, axes = text.partition(" over ")
    return OutputSpec(dtypes.of(dtype), tuple(a in axes for a in "lmn") if axes else None)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Bound:
    """A graph, its plan and its binding."""

    graph: Graph
    plan: EpiloguePlan
    binding: Binding

    @property
    def primitives(self) -> list[str]:
        """The primitives of the plan, in order."""
        return [compute.primitive for compute in self.plan.computes]

    @property
    def constants(self) -> list[int | float]:
        """The constants of the plan, in order."""
        return [constant.literal.value for constant in self.plan.constants]


@pytest.fixture
def bind() -> Callable[..., Bound]:
    """``bind(text, accum="f32", out={"D": "f16"}, bias="f16 row", ...)``: outputs not named are f16."""

    def bound(text: Any, accum: str = "f32", out: dict[str, str] | None = None, **operands: str) -> Bound:
        graph = parse(text)
        outputs = {name: "f16" for name in graph.outputs} | (out or {})
        plan, binding = passes.lower(
            graph,
            dtypes.of(accum),
            tuple((name, operand(spec)) for name, spec in operands.items()),
            tuple((name, output(spec)) for name, spec in outputs.items()),
        )
        return Bound(graph, plan, binding)

    return bound
