# SPDX-License-Identifier: Apache-2.0
"""Measures a suite: every problem, its contenders in turn, each one's result checked before its time counts."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from epifuse.bench import machine, peers, timing
from epifuse.bench.peers import AbsentError, Peer
from epifuse.bench.statistics import Interval, interval, ratio
from epifuse.bench.timing import Contender, Times
from epifuse.bench.workloads import Data, Problem, make

WRONG_ABOVE = 1e-2
"""Relative error (2-norm) of 16-bit results; float32 ones must stay below 1e-3."""
ROWS_CHECKED = 256
OURS = "epifuse"

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Row:
    """One contender on one problem. ``speed`` is its median's TFLOP/s, ``ratio`` how many times as fast ours is."""

    contender: str
    us: Interval
    tflops: float
    gbytes: float
    error: float
    right: bool
    ratio: Interval | None
    rounds: int
    launches: int
    graphed: bool
    note: str = ""


@dataclass
class ProblemResult:
    """All contenders on one problem, the absent ones with their reasons."""

    problem: Problem
    rows: list[Row] = field(default_factory=list)
    absent: dict[str, str] = field(default_factory=dict)
    clocks: dict[str, str] = field(default_factory=dict)

    def best(self, but: tuple[str, ...] = (peers.YARDSTICK.name,)) -> Row | None:
        """The fastest right contender, none of those in ``but``."""
        rows = [row for row in self.rows if row.right and row.contender not in but]
        return min(rows, key=lambda row: row.us.median, default=None)

    def ours(self) -> Row | None:
        """Ours, where it took part."""
        return next((row for row in self.rows if row.contender == OURS), None)

    def best_peer(self) -> Row | None:
        """The fastest right contender that is none of ours."""
        ours = tuple(row.contender for row in self.rows if _is_ours(row.contender))
        return self.best((*ours, peers.YARDSTICK.name))

    def best_of_ours(self) -> Row | None:
        """The fastest right one of ours, first in the list or not."""
        others = tuple(row.contender for row in self.rows if not _is_ours(row.contender))
        return self.best(others)


@dataclass
class SuiteResult:
    """A suite's results, and what they were measured on."""

    suite: str
    device: dict[str, str]
    versions: dict[str, str]
    problems: list[ProblemResult] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def verdict(self) -> Verdict:
        """Ours against the best peer of each problem."""
        pairs = [(found.problem.name, found.ours(), found.best_peer()) for found in self.problems]
        wrong = [row.contender for p in self.problems for row in p.rows if not row.right and _is_ours(row.contender)]
        ratios = {
            name: peer.ratio for name, ours, peer in pairs if ours is not None and peer is not None and peer.ratio
        }
        without = [name for name, _, _ in pairs if name not in ratios]
        return Verdict(ratios, without, wrong)

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


SLOWER = 1 / 1.03
"""Ours is called slower than the best peer where it is certainly not as fast as this."""


@dataclass(frozen=True)
class Verdict:
    """How many times as fast as the best peer ours is, by problem; problems without a peer or without ours; ours that
    were wrong."""

    ratios: dict[str, Interval]
    without: list[str]
    wrong: list[str]

    @property
    def mean(self) -> float:
        """The geometric mean; NaN where there is nothing to compare."""
        logs = [math.log(ratio.median) for ratio in self.ratios.values()]
        return math.exp(sum(logs) / len(logs)) if logs else math.nan

    @property
    def slower(self) -> list[str]:
        """Problems on which a peer is faster by more than 3 %, whatever the noise."""
        return [name for name, ratio in self.ratios.items() if ratio.high < SLOWER]

    def __str__(self) -> str:
        if self.wrong:
            return f"WRONG: {', '.join(dict.fromkeys(self.wrong))}"
        if not self.ratios:
            return "No verdict: there is no problem on which ours and a peer ran."
        worst = min(self.ratios, key=lambda name: self.ratios[name].median)
        text = (
            f"All of ours right. {self.mean:.3f} x the best peer in the geometric mean of {len(self.ratios)} problems, "
        )
        text += f"worst {self.ratios[worst]} on {worst}; slower by more than 3 %: {', '.join(self.slower) or 'none'}."
        return text + (f" Without comparison: {', '.join(self.without)}." if self.without else "")


def _is_ours(contender: str) -> bool:
    return contender.startswith(OURS)


@dataclass(frozen=True)
class Budget:
    """How much is measured. ``cold``: operand sets in turn, twice what the L2 cache holds; otherwise one set."""

    seconds: float
    rounds: int = 60
    cold: bool = False
    seed: int = 0


def run(
    suite: str,
    problems: Sequence[Problem],
    chosen: Sequence[Peer],
    device: str,
    budget: Budget,
    *,
    every_operator: bool = False,
    progress: Progress = lambda text, done, total: None,
    keep: Callable[[SuiteResult], None] = lambda result: None,
) -> SuiteResult:
    """Measure until all is done or the time is over; ``keep`` is called with what there is after each problem."""
    result = SuiteResult(suite, machine.device(device), machine.versions())
    result.notes.append(_method(device, budget.cold))
    end = time.monotonic() + budget.seconds
    for number, problem in enumerate(problems):
        progress(problem.name, number, len(problems))
        left = end - time.monotonic()
        if left <= 0:
            result.left += [p.name for p in problems[number:]]
            break
        share = left / (len(problems) - number)
        result.problems.append(_problem(problem, chosen, device, budget, share, every_operator, progress))
        keep(result)
        if device == "cuda":
            torch.cuda.empty_cache()
    progress("done", len(problems), len(problems))
    return result


def _method(device: str, cold: bool) -> str:
    if device != "cuda":
        return "Timed on the CPU with a host clock: these numbers say nothing about a GPU."
    sets = "Operand sets rotate beyond the L2 cache." if cold else "One operand set: in the cache where it fits."
    return (
        "Operands are random normal. Each contender replays a CUDA graph in its turn, in another order each round. "
        + sets
    )


def _problem(
    problem: Problem,
    chosen: Sequence[Peer],
    device: str,
    budget: Budget,
    seconds: float,
    every_operator: bool,
    progress: Progress,
) -> ProblemResult:
    found = ProblemResult(problem)
    sets = [make(problem, device, budget.seed + i) for i in range(_sets(problem, device, budget.cold))]
    contenders: list[Contender] = []
    start = time.monotonic()
    for number, peer in enumerate((*chosen, peers.YARDSTICK)):
        progress(f"{problem.name}: {peer.name}", number, len(chosen) + 1)
        try:
            contenders.append(peer.contend(sets))
        except AbsentError as reason:
            found.absent[peer.name] = str(reason)
        except Exception as error:  # noqa: BLE001 - a peer's failure is a row of the result, ours too
            found.absent[peer.name] = f"{type(error).__name__}: {error}".splitlines()[0]
    if every_operator:
        contenders += peers.every_operator(sets)
    errors = {c.name: error_of(c, sets[0]) for c in contenders}
    seconds = max(1.0, seconds - (time.monotonic() - start))
    times = timing.run(contenders, device, budget.rounds, seconds, budget.seed)
    if device == "cuda":
        found.clocks = machine.clocks()
    found.rows = rows(problem, contenders, times, errors)
    return found


def rows(
    problem: Problem, contenders: Sequence[Contender], times: dict[str, Times], errors: dict[str, float]
) -> list[Row]:
    """A row for each contender, with ours (or the first, where we are absent) as what the ratios compare with."""
    names = [contender.name for contender in contenders]
    ours = times[OURS].us if OURS in names else None
    size = getattr(torch, problem.dtype).itemsize
    moved = problem.row.bytes_of(problem.m, problem.n, problem.k, size)
    limit = 1e-3 if problem.dtype == "float32" else WRONG_ABOVE
    found = []
    for contender in contenders:
        timed = times[contender.name]
        us = interval(timed.us)
        right = contender.name == peers.YARDSTICK.name or errors[contender.name] <= limit
        found.append(
            Row(
                contender.name,
                us,
                problem.flops / us.median / 1e6,
                moved / us.median / 1e3,
                errors[contender.name],
                right,
                None if ours is None or contender.name == OURS else ratio(ours, timed.us),
                len(timed.us),
                timed.launches,
                timed.graphed,
                contender.note,
            )
        )
    return found


def error_of(contender: Contender, data: Data) -> float:
    """Relative error of the first launch's outputs on some rows, in the 2-norm; NaN where an element is missing."""
    if contender.name == peers.YARDSTICK.name:
        return 0.0
    for out in contender.outputs:
        if contender.name != "torch.compile":  # which gives outputs of its own, stored when it was built
            out.fill_(torch.nan)
    contender.launches[0]()
    m = data.problem.m
    rows = torch.randperm(m, generator=torch.Generator().manual_seed(1))[:ROWS_CHECKED].to(data.a.device)
    worst = 0.0
    for out, exact in zip(contender.outputs, data.reference(rows), strict=True):
        missing = bool(out.isnan().any())
        norm = exact.norm().item()
        error = (out[rows].double() - exact).norm().item() / max(norm, 1e-30)
        worst = max(worst, math.nan if missing else error)
        if missing or math.isnan(error):
            return math.nan
    return worst


def _sets(problem: Problem, device: str, cold: bool) -> int:
    """How many operand sets it takes to hold twice the L2 cache."""
    if device != "cuda" or not cold:
        return 1
    size = getattr(torch, problem.dtype).itemsize
    needed = 2 * torch.cuda.get_device_properties(0).L2_cache_size
    return max(1, min(128, -(-needed // problem.row.bytes_of(problem.m, problem.n, problem.k, size))))
