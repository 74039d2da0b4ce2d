# SPDX-License-Identifier: Apache-2.0
"""Lowering: from the front end's graph to a plan, by an ordered list of small passes.

``PASSES`` is the whole story. Each takes a program (nodes and their types) and gives another one; the rules of
``ir.verify`` run after the last, and in tests after each (``verify_each``), at the stage that it claims to reach.
``schedule`` then puts what is left in canonical order.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from epifuse.dtypes import DType
from epifuse.fusion.ir import infer
from epifuse.fusion.ir.graph import Graph
from epifuse.fusion.ir.verify import Stage, verify
from epifuse.fusion.passes.expand import expand
from epifuse.fusion.passes.program import Context, Program
from epifuse.fusion.passes.rounding import round_explicitly
from epifuse.fusion.passes.schedule import schedule
from epifuse.fusion.passes.simplify import fold, simplify
from epifuse.fusion.plan import Binding, EpiloguePlan, OperandSpec, OutputSpec
from epifuse.records import dataclass


@dataclass(frozen=True, slots=True)
class Pass:
    """One step of lowering, and the stage whose rules its result obeys."""

    name: str
    run: Callable[[Program, Context], Program]
    stage: Stage


PASSES: tuple[Pass, ...] = (
    Pass("simplify", simplify, Stage.SIMPLIFIED),  # what no output needs never asks for a type
    Pass("expand", expand, Stage.EXPANDED),  # composites become primitives
    Pass("round", round_explicitly, Stage.ROUNDED),  # each change of dtype becomes a node
    Pass("fold", fold, Stage.FOLDED),  # what is known bit for bit, and what died on the way, goes
)

verify_each = False
"""Whether the rules run after every pass, so that a broken one is named. They would take an eighth of the time that a
function costs at first sight; the last pass is judged always."""


@lru_cache(maxsize=1024)
def lower(
    graph: Graph,
    accumulator_dtype: DType,
    operands: tuple[tuple[str, OperandSpec], ...],
    outputs: tuple[tuple[str, OutputSpec], ...],
) -> tuple[EpiloguePlan, Binding]:
    """The plan of an epilogue that is bound to operands and outputs, and the user's names beside it. Cached.

    Functions that mean the same give equal plans: names, the order of parameters and of commuting operands, aliases
    and unused intermediates make no difference.

    Raises:
        OperandError: an operand or output is missing or of a dtype that cannot be bound (see ``ir.infer``).
    """
    if verify_each:
        verify(graph.nodes)
    halved = infer.halved_nodes(graph)
    context = Context(
        typing=infer.Typing(accumulator_dtype, dict(operands)),
        outputs=dict(outputs),
        halved_outputs=frozenset(name for name, index in graph.stores.items() if index in halved),
    )
    program = Program(graph.nodes)
    for step in PASSES:
        program = step.run(program, context)
        if verify_each or step is PASSES[-1]:
            verify(program.nodes, program.types, step.stage, step.name)
    return schedule(program, context)


def clear() -> None:
    """Empty the caches of lowering."""
    lower.cache_clear()
    infer.clear()
