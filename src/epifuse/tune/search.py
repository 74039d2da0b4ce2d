# SPDX-License-Identifier: Apache-2.0
"""The search: the first operators of the list by turns under CUDA graphs, within a time that the caller states."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from epifuse import discovery, emulator
from epifuse.arguments import GemmArguments
from epifuse.bench import timing
from epifuse.bench.peers import launch_of
from epifuse.bench.statistics import Interval, interval
from epifuse.bench.timing import Contender
from epifuse.check.subjects import describe
from epifuse.errors import OperandTypeError, UnsupportedError
from epifuse.metadata import BLASDesignMetadata
from epifuse.operator import Operator
from epifuse.runtime import winners
from epifuse.runtime.winners import Winner

Timer = Callable[[Sequence[Contender], float], Mapping[str, Sequence[float]]]
"""Microseconds of each contender's launches by its name, one number for each round, within so many seconds."""

_ROUNDS = 60
_COMPILING = 0.75
"""The part of the time after which no further operator is compiled."""
_LEAST_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Trial:
    """One operator of the list: what the model said and what was measured, or why nothing was."""

    operator_name: str
    what: str
    predicted_us: float | None
    us: Interval | None = None
    note: str = ""


@dataclass(frozen=True)
class TuneResult:
    """What was searched and found. ``operator`` is the fastest; without measurements the first of the list."""

    problem: str
    device: str
    trials: tuple[Trial, ...]
    offered: int
    seconds: float
    limit_seconds: float
    operator: Operator = field(repr=False)
    path: Path | None = None
    note: str = ""

    @property
    def measured(self) -> tuple[Trial, ...]:
        """The trials with times, fastest first."""
        return tuple(sorted((t for t in self.trials if t.us), key=lambda t: t.us.median if t.us else 0.0))

    @property
    def gain(self) -> float:
        """How many times as fast the fastest is as the first of the list; 1 where nothing was measured."""
        found = {trial.operator_name: trial.us for trial in self.measured}
        first, best = self.trials[0].us if self.trials else None, found.get(self.operator.metadata.operator_name)
        return 1.0 if first is None or best is None else first.median / best.median

    def __str__(self) -> str:
        lines = [f"{self.problem} on {self.device}"]
        for trial in (*self.measured, *(t for t in self.trials if not t.us)):
            said = "-" if trial.predicted_us is None else f"{trial.predicted_us:.1f}"
            got = f"measured {trial.us}" if trial.us else trial.note
            lines.append(f"  {trial.what:70s} predicted {said:>8s} us, {got}")
        looked = f"{len(self.measured)} of {self.offered} operators were measured in {self.seconds:.1f} s"
        found = f"the best is {self.gain:.3f} x as fast as the first" if self.measured else "the order is as predicted"
        lines.append(f"{looked} (limit {self.limit_seconds:g} s); {found}")
        lines.append(f"remembered in {self.path}" if self.path else f"not remembered: {self.note}")
        return "\n".join(lines)


def tune(
    args: GemmArguments,
    *,
    seconds: float = 30.0,
    candidates: int = 12,
    timer: Timer | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> TuneResult:
    """Measure the first ``candidates`` operators for these arguments and remember the fastest, which ``get_operators``
    then puts first for arguments of the same kinds and about the same extents, on the same GPU, in any process.

    Args:
        args: what is to be computed. Its outputs are written while it is measured, and are as before afterwards.
        seconds: no operator's compilation and no round of measurements begins later; at least one is measured.
        candidates: how many of the list at most, best first as predicted; a third of them may differ from others in
            the order of tiles alone.
        timer: what measures; None: CUDA graphs, on the operands' GPU.
        clock: seconds that pass.

    Where a GPU is emulated, or M, N or L is 0, there is nothing to measure: the result says so.

    Raises:
        OperandTypeError: (a TypeError) ``args`` are no ``GemmArguments``.
        UnsupportedError: (a ValueError) the operands are on no GPU, or no operator supports them.
    """
    if not isinstance(args, GemmArguments):
        raise OperandTypeError(f"args is of type {type(args).__name__}.", advice="Pass GemmArguments.")
    on_gpu = args.A.device.type == "cuda"
    if not on_gpu and timer is None and emulator.active() is None:
        raise UnsupportedError(
            "tune measures on a GPU, and the operands are on the CPU.",
            advice="Pass CUDA tensors; get_operators(args)[0] is the first as predicted.",
        )
    operators = discovery.get_operators(args)
    if not operators:
        raise UnsupportedError(f"There is nothing to tune.\n{discovery.explain(args)}")
    begin = clock()
    problem = " x ".join(map(str, args.problem_size[:3])) + f", {args.problem_size.L} batches"
    device = winners.device_of(args) or str(args.A.device)
    target = discovery.resolve_target(args, None)
    chosen = _chosen(operators, max(1, candidates))
    predicted = [operator._estimate_us(args, target) for operator in chosen]
    empty = 0 in (args.problem_size.M, args.problem_size.N, args.problem_size.L)
    if empty or (not on_gpu and timer is None):
        note = "nothing is launched" if empty else "the GPU is emulated: its times say nothing"
        idle = tuple(_trial(op, us, note="not measured") for op, us in zip(chosen, predicted, strict=True))
        return TuneResult(problem, device, idle, len(operators), clock() - begin, seconds, operators[0], None, note)
    with _kept(args):
        contenders, notes = _compiled(args, chosen, begin + seconds * _COMPILING, clock)
        left = max(_LEAST_SECONDS, seconds - (clock() - begin))
        times = (timer or _graphs)(contenders, left) if contenders else {}
    trials = tuple(
        _trial(op, us, times.get(op.metadata.operator_name), notes.get(op.metadata.operator_name, ""))
        for op, us in zip(chosen, predicted, strict=True)
    )
    result = TuneResult(problem, device, trials, len(operators), clock() - begin, seconds, operators[0])
    return _remembered(result, args, operators)


def _chosen(operators: Sequence[Operator], candidates: int) -> list[Operator]:
    """The first of the list, two thirds of them with designs that differ in more than the order of tiles."""
    seen: set[str] = set()
    firsts: list[Operator] = []
    for operator in operators:
        design = operator.metadata.design
        kind = operator.metadata.operator_name
        if isinstance(design, BLASDesignMetadata):
            kind = repr((operator.metadata.operator_class, dataclasses.replace(design, group=0)))
        if kind not in seen:
            seen.add(kind)
            firsts.append(operator)
    taken = set(map(id, firsts[: -(-2 * candidates // 3)]))
    for operator in operators:
        if len(taken) == candidates:
            break
        taken.add(id(operator))
    return [operator for operator in operators if id(operator) in taken]


def _trial(operator: Operator, predicted: float | None, us: Sequence[float] | None = None, note: str = "") -> Trial:
    metadata = operator.metadata
    return Trial(metadata.operator_name, describe(metadata), predicted, interval(us) if us else None, note)


def _compiled(
    args: GemmArguments, operators: Sequence[Operator], end: float, clock: Callable[[], float]
) -> tuple[list[Contender], dict[str, str]]:
    """A contender for each operator that compiles and runs before ``end``, as the longest so far tells; notes on the
    others."""
    contenders: list[Contender] = []
    notes: dict[str, str] = {}
    longest = 0.0
    for operator in operators:
        name = operator.metadata.operator_name
        start = clock()
        if contenders and start + longest > end:
            notes[name] = "not measured: the time was over"
            continue
        try:
            launch = launch_of(operator, args)
            launch()
            contenders.append(Contender(name, [launch], args.outputs))
        except Exception as error:  # noqa: BLE001 - an operator that fails is a result of the search
            notes[name] = f"{type(error).__name__}: {error}".splitlines()[0]
        longest = max(longest, clock() - start)
    return contenders, notes


def _graphs(contenders: Sequence[Contender], seconds: float) -> dict[str, Sequence[float]]:
    with torch.cuda.device(contenders[0].outputs[0].device):
        return {name: times.us for name, times in timing.run(contenders, "cuda", _ROUNDS, seconds).items()}


@contextlib.contextmanager
def _kept(args: GemmArguments) -> Iterator[None]:
    """The outputs afterwards as they were before."""
    before = [out.clone() for out in args.outputs]
    try:
        yield
    finally:
        for out, values in zip(args.outputs, before, strict=True):
            out.copy_(values)


def _remembered(result: TuneResult, args: GemmArguments, operators: Sequence[Operator]) -> TuneResult:
    """The result with its winner, which is on disk from now on; lists made before are made anew."""
    measured = result.measured
    if not measured:
        return _with(result, operators[0], None, "nothing could be measured")
    best = next(op for op in operators if op.metadata.operator_name == measured[0].operator_name)
    times = {trial.operator_name: trial.us.median for trial in measured if trial.us}
    names = [operator.metadata.operator_name for operator in operators]
    path = winners.remember(args, names, Winner(measured[0].operator_name, times[measured[0].operator_name], times))
    discovery.clear()
    return _with(result, best, path, "" if path else "the disk did not take it, or the operands are on no GPU")


def _with(result: TuneResult, operator: Operator, path: Path | None, note: str) -> TuneResult:
    facts = (result.problem, result.device, result.trials, result.offered, result.seconds, result.limit_seconds)
    return TuneResult(*facts, operator, path, note)
