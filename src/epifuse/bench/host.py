# SPDX-License-Identifier: Apache-2.0
"""What a fused GEMM costs on the host before anything is launched.

One core, fresh argument objects and another scalar at every call, two functions in turn, so that nothing that a
program would not reuse is reused here. Where the Operator API is installed, it is asked the same in the same process,
call by call in turn (for sm_100a, as it has no operators for a CPU).
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import importlib.util
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

import epifuse
from epifuse.bench.machine import cpu_model
from epifuse.fusion.activation import relu

SHAPE = (128, 256, 64)
"""M, N, K; the host's cost does not depend on it, and small tensors keep memory out of the picture."""

PEER = ("nvidia-cutlass-operators", "cutlass.operators", "100a")
"""Distribution, module and target of the Operator API. It is loaded by name, by whoever asks for this benchmark. Ours
is asked about the same target, and about this machine's CPU."""
PEER_EVERY = 25
"""It takes its turn in one round of so many: a call of it takes up to a thousand times as long."""


# The functions have no docstring, as the Operator API does not parse one.
def scaled_bias_relu(accum: Any, bias: Any, alpha: Any) -> Any:  # noqa: D103
    D = relu(accum * alpha + bias)
    return D


def two_scalars(accum: Any, C: Any, alpha: Any, beta: Any) -> Any:  # noqa: D103
    D = accum * alpha + C * beta
    return D


NEW_FUNCTION = """
def new_{i}(accum, bias, alpha):
    F = accum * alpha + bias * {i}.0
    D = relu(F)
    return D
"""


@dataclass(frozen=True, slots=True)
class Measurement:
    """Microseconds of one question to one contender over ``count`` calls; ``limit_us`` is the project's own bound."""

    name: str
    contender: str
    median_us: float
    p90_us: float
    count: int
    limit_us: float | None


@dataclass(frozen=True, slots=True)
class HostCost:
    """All measurements, and what they were made on."""

    machine: dict[str, str]
    measurements: tuple[Measurement, ...]
    notes: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """A dictionary of plain values."""
        return asdict(self)


LIMITS_US = {
    "arguments, function seen before": 120.0,
    "arguments, new function": 1000.0,
    "get_operators, first for a function": 5000.0,
    "get_operators, repeated": 60.0,
    "supports": 5.0,
}
"""Every question, with the median that epifuse must keep to on one core of an ordinary server."""


class Contender:
    """One library with the Operator API's names, asked every question with operands of its own."""

    def __init__(self, name: str, module: Any, target: str | None) -> None:
        self.name = name
        self.module = module
        self.target = target
        self.times: dict[str, list[float]] = {question: [] for question in LIMITS_US}
        m, n, k = SHAPE
        half = torch.float16
        self.a, self.b = torch.ones(m, k, dtype=half), torch.ones(k, n, dtype=half)
        self.c, self.d = torch.ones(m, n, dtype=half), torch.empty(m, n, dtype=half)
        self.bias = torch.ones(n, dtype=half)

    def arguments(self, function: Callable[..., Any], scalar: float) -> Any:
        """Fresh arguments of a GEMM with this epilogue."""
        if function is two_scalars:
            operands = {"C": self.c, "alpha": scalar, "beta": -scalar}
        else:
            operands = {"bias": self.bias, "alpha": scalar}
        epilogue = self.module.EpilogueArguments(function, **operands, D=self.d)
        return self.module.GemmArguments(self.a, self.b, self.d, accumulator_type=torch.float32, epilogue=epilogue)

    def round(self, scalar: float, new: Callable[..., Any] | None) -> None:
        """Ask every question once for both functions, and once more for a function never seen before."""
        for function in (scaled_bias_relu, two_scalars):
            args = self._timed("arguments, function seen before", self.arguments, function, scalar)
            operators = self._timed("get_operators, repeated", self._discover, args)
            fresh = self.arguments(function, scalar + 0.5)
            self._timed("supports", operators[0].supports, fresh)
        if new is not None:
            args = self._timed("arguments, new function", self.arguments, new, scalar)
            self._timed("get_operators, first for a function", self._discover, args)

    def _discover(self, args: Any) -> Any:
        return self.module.get_operators(args, target_sm=self.target)

    def _timed(self, question: str, call: Callable[..., Any], *arguments: Any) -> Any:
        start = time.perf_counter_ns()
        answer = call(*arguments)
        self.times[question].append((time.perf_counter_ns() - start) / 1e3)
        return answer

    def measurements(self, limits: bool) -> Iterator[Measurement]:
        """Median and 90th percentile of each question that was asked."""
        for question, times in self.times.items():
            if times:
                p90 = statistics.quantiles(times, n=10)[-1] if len(times) > 1 else times[0]
                limit = LIMITS_US[question] if limits else None
                yield Measurement(question, self.name, statistics.median(times), p90, len(times), limit)


def run(rounds: int = 300, *, peer: bool = True) -> HostCost:
    """Measure for ``rounds`` rounds; ``peer``: ask the Operator API too, where it is installed."""
    with _one_core(), tempfile.TemporaryDirectory() as folder:
        ours = Contender("epifuse", epifuse, None)
        there = Contender(f"epifuse, sm_{PEER[2]}", epifuse, PEER[2])
        start = time.perf_counter_ns()
        ours._discover(ours.arguments(scaled_bias_relu, 0.25))
        first_ms = (time.perf_counter_ns() - start) / 1e6
        other = _peer() if peer else None
        new = _new_functions(Path(folder), 2 * rounds)
        for contender in filter(None, (ours, there, other)):
            contender.round(0.125, None)
            contender.times = {question: [] for question in LIMITS_US}
        for i in range(rounds):
            ours.round(float(i), new[i])
            if other is not None and i % PEER_EVERY == 0:
                other.round(float(i), new[i])
        for i in range(rounds):  # not in turn with the others, which would fill the caches between two questions
            there.round(float(i), new[rounds + i])
    found = [*ours.measurements(limits=True), *there.measurements(limits=True)]
    notes = [f"The process's first arguments and get_operators, loading the providers: {first_ms:.1f} ms."]
    if other is not None:
        found += other.measurements(limits=False)
    elif peer:
        notes.append(f"{PEER[0]} is not installed, so nothing is beside.")
    return HostCost(_machine(), tuple(found), tuple(notes))


def _peer() -> Contender | None:
    distribution, module, target = PEER
    try:
        version = importlib.metadata.version(distribution)
        return Contender(f"Operator API {version}", importlib.import_module(module), target)
    except ImportError:
        return None


def _new_functions(folder: Path, count: int) -> list[Callable[..., Any]]:
    """So many functions that differ in a number, in files as a user has them: 20 in each."""
    found = []
    for first in range(0, count, 20):
        path = folder / f"new_functions_{first}.py"
        bodies = [NEW_FUNCTION.format(i=i) for i in range(first, min(first + 20, count))]
        path.write_text("from epifuse.fusion.activation import relu\n" + "".join(bodies), encoding="utf-8")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        spec.loader.exec_module(module)
        found += [getattr(module, f"new_{i}") for i in range(first, min(first + 20, count))]
    return found


@contextlib.contextmanager
def _one_core() -> Iterator[None]:
    """This process on one core, torch with one thread, and both as they were afterwards."""
    threads, cores = torch.get_num_threads(), os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(cores)})
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        os.sched_setaffinity(0, cores)


def _machine() -> dict[str, str]:
    return {
        "cpu": cpu_model(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "epifuse": epifuse.__version__,
        "shape": "x".join(map(str, SHAPE)),
    }
