# SPDX-License-Identifier: Apache-2.0
"""The workshop's sweep: every BM and GROUP on every problem, losing ones too, beside torch and a plain baseline."""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from epifuse.bench import kernels, machine, peers, timing
from epifuse.bench.kernels import Budget, Progress, Row
from epifuse.bench.peers import AbsentError, launch_of
from epifuse.bench.suites import WORKSHOP
from epifuse.bench.timing import Contender
from epifuse.bench.workloads import Data, Problem, make
from epifuse.check import cases
from epifuse.check.subjects import BLOCK_K, BLOCK_N, BLOCKS_M, GROUPS, LearnerSubject, Lesson
from epifuse.check.watch import OutOfTimeError, time_box
from epifuse.discovery import explain, get_operators
from epifuse.metadata import OperatorMetadata

BASELINE = "baseline: float32, TF32 off, one cast at the end"
FUSED_BY_TORCH = "torch._addmm_activation"
NOTE = (
    "Times alone: they do not say why one order of tiles is faster than another, and nothing here counts cache hits. "
    "A problem whose tiles all run at once has no order that could matter."
)

TOO_LONG_S = 3.0
"""A learner's function that takes longer for one call is left out of that problem."""


@dataclass(frozen=True, slots=True)
class Point:
    """One configuration of the search space on one problem: its row, or why it is not there."""

    block_m: int
    group: int
    whose: str
    row: Row | None
    skipped: str = ""


@dataclass
class Sweep:
    """One problem: the whole search space and what stands beside it."""

    problem: Problem
    points: list[Point] = field(default_factory=list)
    beside: list[Row] = field(default_factory=list)
    absent: dict[str, str] = field(default_factory=dict)
    clocks: dict[str, str] = field(default_factory=dict)

    def best(self, whose: str = "epifuse") -> Point | None:
        """The fastest right configuration of ours, or of the learner's."""
        right = [p for p in self.points if p.row is not None and p.row.right and p.whose == whose]
        return min(right, key=lambda p: p.row.us.median if p.row else 0.0, default=None)

    def ties(self, best: Point) -> list[Point]:
        """Other right configurations whose interval reaches the best one's: the numbers do not tell them apart."""
        assert best.row is not None
        high = best.row.us.high
        rivals = [p for p in self.points if p.whose == best.whose and p is not best]
        return [p for p in rivals if p.row is not None and p.row.right and p.row.us.low <= high]


@dataclass
class SweepResult:
    """All problems, and what they were measured on."""

    device: dict[str, str]
    versions: dict[str, str]
    sweeps: list[Sweep] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Plain values, with the best configuration of each problem."""
        found = asdict(self)
        for sweep, plain in zip(self.sweeps, found["sweeps"], strict=True):
            best = sweep.best()
            plain["best"] = None if best is None else {"block_m": best.block_m, "group": best.group}
        return found


def run(
    device: str,
    budget: Budget,
    lesson: Lesson | None = None,
    problems: Sequence[Problem] = WORKSHOP,
    progress: Progress = lambda text, done, total: None,
) -> SweepResult:
    """Sweep ``BLOCKS_M`` x ``GROUPS`` with BN = 64 and BK = 32; of a learner's function too, where there is one."""
    result = SweepResult(machine.device(device), machine.versions(), notes=[NOTE])
    if device == "cpu":
        result.notes.append(
            "There is no GPU here: our tiles and groups are a GPU kernel's, so the sweep lists them as not offered. "
            "What runs is the CPU provider, torch, the baseline and a learner's function; their times say nothing "
            "about a GPU, but all results are checked. `python -m epifuse check fused_gemm --device emulator` runs the "
            "GPU kernel itself, for its results."
        )
        problems = [p for p in problems if p.flops < 1e9]
    end = time.monotonic() + budget.seconds
    for number, problem in enumerate(problems):
        progress(problem.name, number, len(problems))
        left = end - time.monotonic()
        if left <= 0:
            result.left += [p.name for p in problems[number:]]
            break
        result.sweeps.append(_sweep(problem, device, budget, left / (len(problems) - number), lesson, progress))
    progress("done", len(problems), len(problems))
    return result


def _sweep(
    problem: Problem, device: str, budget: Budget, seconds: float, lesson: Lesson | None, progress: Progress
) -> Sweep:
    sweep = Sweep(problem)
    data = make(problem, device, budget.seed)
    contenders: list[Contender] = []
    keys: dict[str, tuple[int, int, str]] = {}
    start = time.monotonic()
    space = list(itertools.product(BLOCKS_M, GROUPS))
    for number, (block_m, group) in enumerate(space):
        progress(f"{problem.name}: BM {block_m}, GROUP {group}", number, len(space))
        sources = [("epifuse", _ours)] + ([] if lesson is None else [(lesson.path.name, _learners)])
        for whose, build in sources:
            name = f"{whose}: BM {block_m} GROUP {group}"
            try:
                contenders.append(build(name, data.fresh(), block_m, group, lesson))
                keys[name] = (block_m, group, whose)
            except AbsentError as reason:
                sweep.points.append(Point(block_m, group, whose, None, str(reason)))
            except Exception as error:  # noqa: BLE001 - a configuration that fails is a result of the sweep
                text = f"{type(error).__name__}: {error}".splitlines()[0]
                sweep.points.append(Point(block_m, group, whose, None, text))
    for peer in (peers.PEERS[0], peers.Peer(FUSED_BY_TORCH, peers.cublaslt_fused), peers.Peer(BASELINE, _baseline)):
        try:
            contenders.append(peer.contend([data]))
        except Exception as error:  # noqa: BLE001 - as above
            sweep.absent[peer.name] = f"{type(error).__name__}: {error}".splitlines()[0]
    left = max(1.0, seconds - (time.monotonic() - start))
    with _full_float32():
        errors = {c.name: kernels.error_of(c, data) for c in contenders}
        times = timing.run(contenders, device, budget.rounds, left, budget.seed)
    sweep.clocks = machine.clocks() if device == "cuda" else {}
    for row in kernels.rows(problem, contenders, times, errors):
        if row.contender in keys:
            block_m, group, whose = keys[row.contender]
            sweep.points.append(Point(block_m, group, whose, row))
        else:
            sweep.beside.append(row)
    sweep.points.sort(key=lambda p: (p.whose != "epifuse", p.block_m, p.group))
    return sweep


def matches(metadata: OperatorMetadata, block_m: int, group: int) -> bool:
    """Whether an operator's design is a point of the sweep."""
    design = metadata.design
    wanted = (block_m, BLOCK_N, BLOCK_K)
    return tuple(getattr(design, "tile_shape", ())) == wanted and getattr(design, "group", None) == group


def _ours(name: str, data: Data, block_m: int, group: int, lesson: Lesson | None) -> Contender:
    args = peers.arguments(data)
    found = get_operators(args, lambda metadata: matches(metadata, block_m, group), limit=1)
    if not found:
        if data.a.device.type == "cpu":
            raise AbsentError("not offered on the CPU")
        reasons = [row.status.reason.splitlines()[0] for row in explain(args) if not row.status]
        raise AbsentError(f"not offered: {'; '.join(reasons) or 'no operator has this tile and group'}")
    return Contender(name, [launch_of(found[0], args)], [data.outputs["D"]])


def _learners(name: str, data: Data, block_m: int, group: int, lesson: Lesson | None) -> Contender:
    """The learner's function, judged on a ragged problem before it is timed."""
    assert lesson is not None
    subject = LearnerSubject(lesson, block_m, group)
    generator = torch.Generator().manual_seed(0)
    dtype, device = data.a.dtype, data.a.device.type
    findings = cases.judge(subject, cases.integers(block_m + 5, BLOCK_N + 7, 45, dtype, generator, device=device))
    if findings:
        raise AbsentError(f"wrong: {findings[0].kind.value} (python -m epifuse check fused_gemm --file {lesson.path})")
    out = data.outputs["D"]
    given = (data.a, data.b, data.operands["bias"], block_m, group)
    try:
        with time_box(TOO_LONG_S):
            lesson.function(*given)
            if device == "cuda":
                torch.cuda.synchronize()
    except OutOfTimeError as late:
        raise AbsentError(f"not timed: a call takes more than {TOO_LONG_S:g} s") from late
    if lesson.takes_out:
        return Contender(name, [functools.partial(lesson.function, *given, out=out)], [out])
    # Its output is memory of its own each time, and a copy of it is what can be checked: it pays for that copy.
    call = functools.partial(lesson.function, *given)
    return Contender(name, [functools.partial(_copy, call, out)], [out], note="with a copy, as it takes no out")


def _copy(call: Any, out: torch.Tensor) -> None:
    out.copy_(call())


def _baseline(data: Data) -> peers.Launch:
    a, b, bias, out = data.a, data.b, data.operands["bias"], data.outputs["D"]

    def launch() -> None:
        out.copy_(torch.relu(a.float() @ b.float() + bias.float()))

    return launch


class _full_float32:  # noqa: N801 - a context manager reads as a verb
    """torch's float32 products in full float32 inside, and as they were afterwards."""

    def __enter__(self) -> None:
        self.before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("highest")

    def __exit__(self, *exception: object) -> None:
        torch.set_float32_matmul_precision(self.before)
