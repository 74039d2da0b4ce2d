# SPDX-License-Identifier: Apache-2.0
"""Contenders timed in turn: CUDA graphs and events on a GPU, a host clock on the CPU."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

WARM_UP = 3
"""Launches before those that are timed; the fastest says how many make a turn. A host that is busy elsewhere makes any
one of them look long: with few launches a turn, what a graph's start takes (30 us) would count as theirs."""
TOO_LONG_US = 50_000.0
"""A launch longer than this is timed as it is: its graph would be large and gain nothing."""
ROUND_US = 1500.0
"""About how long one contender's turn takes: long beside an event's resolution, short beside a change of clocks."""
MOST_LAUNCHES = 256


@dataclass(eq=False)
class Contender:
    """Something that computes a problem. ``launches[i]`` runs it on operand set i, on torch's current stream."""

    name: str
    launches: Sequence[Callable[[], object]]
    outputs: Sequence[torch.Tensor]
    """What the first launch writes, for the check; ``result`` where the contender returns its own instead."""
    note: str = ""
    details: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Times:
    """Microseconds a launch took, one number for each round; rounds of all contenders of a problem match."""

    us: tuple[float, ...]
    launches: int
    graphed: bool


@dataclass
class _Runner:
    contender: Contender
    launches: int = 1
    graph: torch.cuda.CUDAGraph | None = None
    us: list[float] = field(default_factory=list)

    def once(self) -> None:
        sets = self.contender.launches
        for i in range(self.launches):
            sets[i % len(sets)]()


def run(contenders: Sequence[Contender], device: str, rounds: int, seconds: float, seed: int = 0) -> dict[str, Times]:
    """Time the contenders in turn, in another order each round, until ``rounds`` or ``seconds`` are over.

    On a GPU each turn replays a CUDA graph of so many launches that it takes about a millisecond; a contender that
    cannot be captured is launched as it is, and says so.
    """
    runners = [_Runner(contender) for contender in contenders]
    prepare, turn = (_prepare_cuda, _turn_cuda) if device == "cuda" else (_prepare_cpu, _turn_cpu)
    for runner in runners:
        prepare(runner)
    order = random.Random(seed)
    start = time.monotonic()
    for number in range(rounds):
        shuffled = list(runners)
        order.shuffle(shuffled)
        for runner in shuffled:
            turn(runner)
        if time.monotonic() - start > seconds and number >= 4:
            break
    return {r.contender.name: Times(tuple(r.us), r.launches, r.graph is not None) for r in runners}


def _launches_for(us: float, sets: int) -> int:
    count = max(1, min(MOST_LAUNCHES, int(ROUND_US / max(us, 1e-3))))
    return max(sets, count // sets * sets)


def _prepare_cpu(runner: _Runner) -> None:
    taken: list[float] = []
    while len(taken) < WARM_UP and not (len(taken) > 1 and taken[-1] > TOO_LONG_US):
        start = time.perf_counter_ns()
        runner.once()
        taken.append((time.perf_counter_ns() - start) / 1e3)
    runner.launches = _launches_for(min(taken), len(runner.contender.launches))


def _turn_cpu(runner: _Runner) -> None:
    start = time.perf_counter_ns()
    runner.once()
    runner.us.append((time.perf_counter_ns() - start) / 1e3 / runner.launches)


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def _prepare_cuda(runner: _Runner) -> None:
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        begin, end = _event(), _event()
        taken: list[float] = []
        for _ in range(WARM_UP):
            begin.record()
            runner.contender.launches[0]()
            end.record()
            end.synchronize()
            taken.append(begin.elapsed_time(end) * 1e3)
            if taken[-1] > TOO_LONG_US:
                runner.contender.note = "launched without a graph, as it takes long"
                return
        runner.launches = _launches_for(min(taken), len(runner.contender.launches))
        runner.once()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            runner.once()
        graph.replay()
        torch.cuda.synchronize()
        runner.graph = graph
    except Exception as error:  # noqa: BLE001 - what cannot be captured is still measured, and says why
        torch.cuda.synchronize()
        runner.contender.note = f"not in a graph: {type(error).__name__}: {error}".splitlines()[0]


def _turn_cuda(runner: _Runner) -> None:
    begin, end = _event(), _event()
    begin.record()
    if runner.graph is None:
        runner.once()
    else:
        runner.graph.replay()
    end.record()
    end.synchronize()
    runner.us.append(begin.elapsed_time(end) * 1e3 / runner.launches)
