# SPDX-License-Identifier: Apache-2.0
"""``epifuse check``: verdicts on operators, or on a learner's own function, with what was expected and a hint."""

from __future__ import annotations

import contextlib
import difflib
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from epifuse.check import epilogues, fused_gemm, mapping
from epifuse.check.fused_gemm import Plan
from epifuse.check.subjects import CheckError, load_lesson
from epifuse.check.verdict import Report, Section
from epifuse.commands import screen
from epifuse.target import TargetSm
from epifuse.utils.device import target_of_device

SUITES = ("fused_gemm", "epilogues")
SHOWN = 12
"""How many findings are printed; JSON has them all."""


def run(suite: str, file: Path | None, plan: Plan, output: Path | None, only: tuple[str, ...] = ()) -> int:
    """Check and print; 0 where everything is right.

    Args:
        suite: ``fused_gemm`` or ``epilogues``.
        file: a learner's file in place of the operators.
        plan: where, and how much. Device ``auto`` is the GPU where there is one that runs the target's operators;
            otherwise a named target is emulated.
        output: write JSON there too.
        only: operations of the vocabulary, for ``epilogues``.

    Raises:
        CheckError: (a ValueError) there is no such suite, device, file or function.
    """
    if suite not in SUITES:
        raise CheckError(f"There is no check {suite!r}.", advice=f"Checks: {', '.join(SUITES)}.")
    if file is not None and suite != "fused_gemm":
        raise CheckError("--file holds a fused_gemm.", advice="python -m epifuse check fused_gemm --file my.py")
    if plan.device == "auto":
        plan = replace(plan, device=_device_for(TargetSm.ensure(plan.target)))
    plan.require_device()
    _require_known(only)
    lesson = None if file is None else load_lesson(file)
    console = screen.console()
    if suite == "fused_gemm":
        _mapping(console)
    with _progress(console) as progress:
        plan = replace(plan, progress=progress)
        if suite == "epilogues":
            report = epilogues.check(plan, only)
        elif lesson is not None:
            report = fused_gemm.check_lesson(lesson, plan)
        else:
            report = fused_gemm.check_operators(plan)
    report.notes += _limits(plan, file)
    _print(console, report)
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(json.dumps(report.as_json(), indent=2) + "\n", encoding="utf-8")
        console.print(Text(f"written to {output}"))
    return 0 if report else 1


def _require_known(only: tuple[str, ...]) -> None:
    """Refuse operations that there are not."""
    operations = list(dict.fromkeys(operation for operation, _ in epilogues.texts()))
    for name in only:
        if name not in operations:
            near = ", ".join(difflib.get_close_matches(name, operations)) or "`doctor --vocabulary` lists them"
            raise CheckError(f"There is no operation {name!r} to check.", advice=f"Nearest: {near}. One --only each.")


def _device_for(target: TargetSm | None) -> str:
    """The device that is meant where none is named."""
    here = target_of_device(torch.device("cuda"))
    if here is None:
        return "cpu" if target is None else "emulator"
    return "cuda" if target is None or here.supports_operators_from((target,)) else "emulator"


def _mapping(console: Console) -> None:
    title = "Grouped tile order, derived: 3 x 2 tiles, GROUP = 2"
    made = screen.table("pid", "group", "first", "rows", "inner", "m, n", "tile", title=title)
    for row in mapping.derivation():
        made.add_row(*row)
    console.print(made)
    console.print("so: " + " ".join(f"({m},{n})" for m, n in mapping.defined(3, 2, 2)), highlight=False)


def _limits(plan: Plan, file: Path | None) -> list[str]:
    """What this machine leaves open, in sentences."""
    if plan.device != "cpu":
        return []
    what = "your function on CPU tensors" if file is not None else "the CPU provider, the definition of results"
    open_ = "A GPU kernel of yours needs --device cuda." if file is not None else (
        "GPU kernels: --device cuda where there is a GPU, --device emulator --target 90a anywhere (few sizes, slowly)."
    )  # fmt: skip
    return [f"Checked here: {what}. {open_}"]


@contextlib.contextmanager
def _progress(console: Console) -> Iterator[Callable[[str, int, int], None]]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=console, transient=True) as bars:
        task = bars.add_task("", total=1)

        def step(text: str, done: int, total: int) -> None:
            bars.update(task, description=text, completed=done, total=max(total, 1))

        yield step


def _print(console: Console, report: Report) -> None:
    console.print(_summary(report))
    for section in report.sections:
        for skipped in section.skipped:
            console.print(Text(f"not checked ({section.name}): {skipped}", style="yellow"))
    shown = report.distinct(SHOWN)
    for finding in shown:
        console.print(Text(str(finding), style="red"))
    rest = len(report.findings) - len(shown)
    if rest > 0:
        console.print(Text(f"... and {rest} more findings, most of them the same faults again (--json FILE has all)"))
    for note in report.notes:
        console.print(Text(note))
    end = "all right" if report else f"{len(report.findings)} findings" if report.findings else "nothing was checked"
    others = f" ({report.others} more are left to other operators)" if report.others else ""
    console.print(Text(f"{report.cases} cases{others}, {end}.", style="bold green" if report else "bold red"))


def _summary(report: Report) -> Table:
    """A row for each kind of section: what several operators were asked alike stands together."""
    together: dict[str, list[Section]] = {}
    for section in report.sections:
        together.setdefault(re.sub(r" \[.*\]", "", section.name), []).append(section)
    made = screen.table("what", "cases", "", title=f"check {report.suite} on {report.where}")
    for name, sections in together.items():
        cases = sum(section.cases for section in sections)
        wrong = len({finding.case + finding.subject for section in sections for finding in section.findings})
        verdict = Text(f"{wrong} WRONG", style="red") if wrong else Text("ok" if cases else "-", style="green")
        made.add_row(Text(name), str(cases), verdict)
    return made
