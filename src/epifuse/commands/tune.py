# SPDX-License-Identifier: Apache-2.0
"""``epifuse tune``: measure the operators for a function in a file on this GPU, and remember the fastest."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from rich.text import Text

from epifuse.commands import functions, screen
from epifuse.commands.functions import Problem
from epifuse.errors import UnsupportedError
from epifuse.runtime import winners
from epifuse.tune import TuneResult, tune


def run(
    place: str, problem: Problem, operands: Sequence[str], extra: Sequence[str], seconds: float, candidates: int
) -> int:
    """Measure, and print what was searched; 1 where nothing could be measured.

    Raises:
        EpifuseError: the file, the function or an operand cannot be used, or there is no GPU.
    """
    if not torch.cuda.is_available():
        raise UnsupportedError(
            "tune measures on a GPU, and there is none here.",
            advice="Without one, get_operators(args, target_sm='90a') lists the operators in their predicted order.",
        )
    function = functions.load_function(place)
    described = functions.parse_operands(operands, extra)
    args, assumed = functions.invent(function, problem, described, "cuda")
    console = screen.console()
    for name, what in assumed.items():
        console.print(Text(f"assumed: {name} is {what}", style="yellow"))
    result = tune(args, seconds=seconds, candidates=candidates)
    console.print(_table(result))
    for line in str(result).splitlines()[-2:]:
        console.print(Text(line))
    return 0 if result.measured else 1


def forget() -> None:
    """Forget every winner that was remembered, and say how many there were."""
    count = winners.clear()
    screen.console().print(Text(f"{count} records forgotten; operators are listed as predicted again"))


def _table(result: TuneResult) -> object:
    made = screen.table("operator", "predicted us", "us [95 %]", title=f"{result.problem} on {result.device}")
    for trial in (*result.measured, *(trial for trial in result.trials if not trial.us)):
        predicted = "-" if trial.predicted_us is None else f"{trial.predicted_us:.1f}"
        made.add_row(trial.what, predicted, str(trial.us) if trial.us else Text(trial.note, style="yellow"))
    return made
