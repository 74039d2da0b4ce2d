# SPDX-License-Identifier: Apache-2.0
"""``epifuse explain``: which operators serve a function in a file, and why the others do not."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from epifuse.commands import functions, screen
from epifuse.commands.functions import Problem
from epifuse.discovery import explain
from epifuse.target import TargetSm


def run(place: str, problem: Problem, operands: Sequence[str], extra: Sequence[str], targets: Sequence[str]) -> None:
    """Print discovery's answers for each target (none: this machine's CPU), and what was assumed.

    Raises:
        EpifuseError: the file, the function or an operand cannot be used.
    """
    asked = [TargetSm(target) for target in targets]
    console = screen.console()
    function = functions.load_function(place)
    described = functions.parse_operands(operands, extra)
    args, assumed = functions.invent(function, problem, described)
    console.print(screen.source(function))
    a, b = tuple(args.A.shape), tuple(args.B.shape)
    console.print(Text(f"A {a} and B {b} {problem.dtype.name}, accumulator {problem.accumulator.name}"))
    for name, what in assumed.items():
        console.print(Text(f"assumed: {name} is {what}", style="yellow"))
    console.print(Text(str(args.plan)))
    for target in asked or (None,):
        console.print(screen.explanation(explain(args, target_sm=target)))
