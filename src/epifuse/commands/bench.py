# SPDX-License-Identifier: Apache-2.0
"""``epifuse bench``: honest timings, as tables, as JSON and as a picture."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from epifuse.bench import fused_gemm, host, kernels, peers, plot
from epifuse.bench.kernels import Budget, ProblemResult, Row, SuiteResult
from epifuse.bench.suites import SUITES
from epifuse.check.subjects import load_lesson
from epifuse.commands import screen
from epifuse.errors import UnsupportedError


@dataclass(frozen=True, slots=True)
class Options:
    """How much is measured, against whom, and where it is written."""

    seconds: float = 480.0
    peers: str = "quick"
    problems: str = ""
    plot: Path | None = None
    device: str = "auto"
    output: Path | None = None
    cold: bool = False

    @property
    def place(self) -> str:
        """The device meant.

        Raises:
            UnsupportedError: (a ValueError) it is not there.
        """
        there = torch.cuda.is_available()
        if self.device == "auto":
            return "cuda" if there else "cpu"
        if self.device not in ("cpu", "cuda") or (self.device == "cuda" and not there):
            raise UnsupportedError(f"There is no device {self.device!r} here.", advice="--device cpu, cuda or auto.")
        return self.device

    @property
    def budget(self) -> Budget:
        """Time and temperature."""
        return Budget(self.seconds, cold=self.cold)


def run(name: str, file: Path | None, options: Options) -> int:
    """Measure ``fused_gemm`` or a suite, print it, write it; 1 where a result was wrong.

    Raises:
        UnsupportedError: (a ValueError) there is no such benchmark, peer, problem or device.
    """
    if name == "fused_gemm":
        return sweep(file, options)
    if file is not None:
        raise UnsupportedError("--file is measured by --op fused_gemm alone.", advice="Leave --suite out.")
    return suite(name, options)


# --- host -------------------------------------------------------------------------------------------------------------


def host_cost(output: Path | None, rounds: int, peer: bool) -> int:
    """Measure what arguments and discovery cost on the host, print it, and write JSON to ``output``."""
    result = host.run(rounds, peer=peer)
    made = screen.table("what", "whose", "median", "p90", "allowed", "", title="Host cost in microseconds, one core")
    for row in result.measurements:
        within = row.limit_us is None or row.median_us <= row.limit_us
        verdict = Text("" if row.limit_us is None else "ok" if within else "OVER", style="green" if within else "red")
        limit = "" if row.limit_us is None else f"{row.limit_us:g}"
        made.add_row(row.name, row.contender, f"{row.median_us:.1f}", f"{row.p90_us:.1f}", limit, verdict)
    console = screen.console()
    console.print(made)
    for line in result.notes:
        console.print(Text(line))
    _write(console, output, result.as_json())
    return 0


# --- the workshop's sweep ---------------------------------------------------------------------------------------------


def sweep(file: Path | None, options: Options) -> int:
    """Measure every tile and group of the workshop, and a learner's function where ``file`` names one."""
    console = screen.console()
    device = options.place
    lesson = None if file is None else load_lesson(file)
    if lesson is not None and device == "cuda":
        console.print(Text(f"{lesson.path.name} runs on this GPU: a hanging kernel cannot be stopped from here."))
    with _progress(console) as progress:
        result = fused_gemm.run(device, options.budget, lesson, progress=progress)
    for found in result.sweeps:
        console.print(_sweep_table(found))
        for whose in dict.fromkeys(p.whose for p in found.points):
            console.print(Text(f"{found.problem.name}, {whose}: {_best(found, whose)}", style="bold"))
        for name, reason in found.absent.items():
            console.print(Text(f"absent: {name}: {reason}", style="yellow"))
    _facts(console, result.device, result.versions, result.left, result.notes)
    _write(console, options.output, result.as_json())
    rows = [p.row for s in result.sweeps for p in s.points if p.row] + [r for s in result.sweeps for r in s.beside]
    return 0 if all(row.right for row in rows) else 1


def _best(found: fused_gemm.Sweep, whose: str) -> str:
    best = found.best(whose)
    if best is None:
        return "no configuration ran"
    text = f"best is BM {best.block_m}, GROUP {best.group}"
    ties = ", ".join(f"{p.block_m}/{p.group}" for p in found.ties(best))
    return f"{text}; not told apart from it: {ties}" if ties else text


def _sweep_table(found: fused_gemm.Sweep) -> Any:
    reference = next((row for row in found.beside if row.contender == fused_gemm.BASELINE), None)
    made = screen.table("what", "us [95 %]", "TFLOP/s", "x baseline", "", title=found.problem.name)
    best = [found.best(whose) for whose in {p.whose for p in found.points}]
    for point in found.points:
        name = f"{point.whose} BM {point.block_m} GROUP {point.group}"
        if point.row is None:
            made.add_row(name, "-", "", "", Text(point.skipped, style="yellow"))
        else:
            made.add_row(name, *_cells(point.row, reference), _verdict(point.row, point in best))
    for row in found.beside:
        made.add_row(row.contender, *_cells(row, reference), _verdict(row, False))
    return made


def _cells(row: Row, reference: Row | None) -> tuple[str, str, str]:
    speed = "" if reference is None else f"{reference.us.median / row.us.median:.2f}"
    return f"{row.us.median:.2f} [{row.us.low:.2f}, {row.us.high:.2f}]", f"{row.tflops:.3g}", speed


def _verdict(row: Row, best: bool) -> Text:
    if not row.right:
        return Text(f"WRONG ({row.error:.1e})", style="red")
    return Text("best" if best else row.note, style="green" if best else "yellow")


# --- suites -----------------------------------------------------------------------------------------------------------


def suite(name: str, options: Options) -> int:
    """Measure a named suite against the chosen peers."""
    if name not in SUITES:
        known = ", ".join((*SUITES, "host"))
        raise UnsupportedError(f"There is no benchmark {name!r}.", advice=f"--op fused_gemm or host; --suite {known}.")
    problems = [p for p in SUITES[name] if options.problems in p.name]
    chosen, unknown = peers.chosen(options.peers)
    if unknown or not problems:
        what = f"peer {unknown[0]!r}" if unknown else f"problem {options.problems!r}"
        names = [p.name for p in peers.PEERS] if unknown else [p.name for p in SUITES[name]]
        raise UnsupportedError(f"There is no {what}.", advice=f"There are: {', '.join(names)}.")
    console, device = screen.console(), options.place
    if device == "cpu":
        console.print(
            Text(
                f"There is no GPU here, and {name} measures GPU kernels: its {len(problems)} problems are listed, not "
                "run. `bench --op host` measures here what the host does, `check` what results are."
            )
        )
        for problem in problems:
            console.print(Text(f"  {problem.name}: {problem.flops / 1e9:.1f} GFLOP"))
        return 0

    def keep(result: SuiteResult) -> None:
        if options.output is not None:  # what there is so far, should the time of the whole process end
            _save(options.output, result.as_json())

    every = "operators" in options.peers.split(",")
    with _progress(console) as progress:
        result = kernels.run(
            name, problems, chosen, device, options.budget, every_operator=every, progress=progress, keep=keep
        )
    for found in result.problems:
        console.print(_suite_table(found))
        for peer, reason in found.absent.items():
            console.print(Text(f"absent: {peer}: {reason}", style="yellow"))
    console.print(_summary(result))
    console.print(Text(str(result.verdict()), style="bold"))
    _facts(console, result.device, result.versions, result.left, result.notes)
    _write(console, options.output, result.as_json())
    _draw(console, options.plot, result)
    return 0 if all(row.right for p in result.problems for row in p.rows) else 1


def _suite_table(found: ProblemResult) -> Any:
    made = screen.table("contender", "us [95 %]", "TFLOP/s", "GB/s", "ours is faster by", "", title=found.problem.name)
    best = found.best()
    for row in sorted(found.rows, key=lambda row: row.us.median):
        times, tflops, _ = _cells(row, None)
        by = "" if row.ratio is None else f"{row.ratio.median:.3f} [{row.ratio.low:.3f}, {row.ratio.high:.3f}]"
        made.add_row(row.contender, times, tflops, f"{row.gbytes:.0f}", by, _verdict(row, row is best))
    return made


def _summary(result: SuiteResult) -> Any:
    heads = ("problem", "ours", "best peer", "", "times as fast", "best of ours")
    made = screen.table(*heads, title="Ours against the best peer, TFLOP/s")
    for found in result.problems:
        ours, peer, best = found.ours(), found.best_peer(), found.best_of_ours()
        share = "" if ours is None or peer is None or peer.ratio is None else str(peer.ratio)
        listed = [row for row in found.rows if row.contender.startswith(f"{kernels.OURS} #")]
        made.add_row(
            found.problem.name,
            "-" if ours is None else f"{ours.tflops:.4g}",
            "-" if peer is None else f"{peer.tflops:.4g}",
            "" if peer is None else peer.contender,
            share,
            "" if best is None or not listed else f"{best.tflops:.4g} {best.contender}",
        )
    return made


def _draw(console: Console, path: Path | None, result: SuiteResult) -> None:
    if path is None:
        return
    if not plot.available():
        console.print(Text("no picture: matplotlib is not installed (pip install 'epifuse[plot]')", style="yellow"))
        return
    plot.save(result, path)
    console.print(Text(f"drawn to {path}"))


# --- shared -----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _progress(console: Console) -> Iterator[Callable[[str, int, int], None]]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bars:
        task = bars.add_task("", total=1)

        def step(text: str, done: int, total: int) -> None:
            bars.update(task, description=text, completed=done, total=max(total, 1))

        yield step


def _facts(
    console: Console, device: dict[str, str], versions: dict[str, str], left: list[str], notes: list[str]
) -> None:
    console.print(Text(", ".join(f"{key} {value}" for key, value in (device | versions).items())))
    for note in notes:
        console.print(Text(note))
    if left:
        console.print(Text(f"not measured, the time was over: {', '.join(left)}", style="yellow"))


def _write(console: Console, path: Path | None, data: dict[str, Any]) -> None:
    if path is not None:
        _save(path, data)
        console.print(f"written to {path}", highlight=False)


def _save(path: Path, data: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
