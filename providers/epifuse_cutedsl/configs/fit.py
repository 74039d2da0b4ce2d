# SPDX-License-Identifier: Apache-2.0
"""Rows for a table of times, from what was measured.

``python -m epifuse bench --suite ranking --peers operators -o times.json`` on the GPU, then, anywhere,
``python -m epifuse_cutedsl.configs.fit times.json 90a``: the rows, and what the model's first choice costs.
"""

from __future__ import annotations

import json
import math
import random
import sys
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from epifuse import discovery
from epifuse.arguments import EpilogueArguments, GemmArguments
from epifuse.bench import kernels
from epifuse.bench.workloads import Problem
from epifuse.check.subjects import describe
from epifuse.target import TargetSm
from epifuse_cutedsl.configs import times_sm90, times_sm100
from epifuse_cutedsl.configs.model import Persistent, PersistentTimes, Traffic, Work, persistent_us, work_of

FAMILIES: dict[str, Callable[[Any, int], tuple[Hashable, Persistent]]] = {
    "Sm90GemmOperator": lambda config, group: (times_sm90.row_of(config), times_sm90.how(config, group)),
    "Sm100GemmOperator": lambda config, group: (times_sm100.row_of(config), times_sm100.how(config, group)),
}
"""By family: a configuration's key in its table, and how it works on a problem by what the table says now."""
_HIDDEN = 1 / 20000
"""Microseconds of an epilogue for each element of a tile, at least: one that is hidden shows in no time."""
_LEAST_STEP, _FIRST_STEP = 0.003, 0.3
_ANY = TargetSm("90a")
"""Whose SMs are counted for the search's first guess."""


class Sample(NamedTuple):
    """One operator on one problem, in microseconds."""

    problem: str
    key: Hashable
    work: Work
    how: Persistent
    us: float

    def predicted(self, times: PersistentTimes, target: TargetSm) -> float:
        """What the model says with this row."""
        return persistent_us(self.work, self.how._replace(times=times), target)


def samples(measured: dict[str, Any], target: TargetSm) -> list[Sample]:
    """What a suite's JSON says of the families here."""
    found = []
    for result in measured["problems"]:
        problem = Problem(**result["problem"])
        args = _arguments(problem)
        by_name = {describe(op.metadata): op for op in discovery.get_operators(args, target_sm=target)}
        for row in result["rows"]:
            operator: Any = by_name.get(row["contender"].partition(": ")[2])
            family = FAMILIES.get(type(operator).__name__)
            if family is not None and row["right"] and row["contender"].startswith(kernels.OURS):
                key, how = family(operator.config, operator.group)
                found.append(Sample(problem.name, key, work_of(args), how, row["us"]["median"]))
    return found


def fitted(own: Sequence[Sample], target: TargetSm) -> tuple[PersistentTimes, float]:
    """The row that predicts these samples of one configuration best, and the root of mean square of its logarithms."""
    tile = own[0].how
    least = (0.01, 0.02, tile.tile_m * tile.tile_n * _HIDDEN)
    order = random.Random(0)

    def loss(row: Sequence[float]) -> float:
        times = PersistentTimes(*row)
        return sum(math.log(sample.predicted(times, target) / sample.us) ** 2 for sample in own)

    row = [max(value, low) for value, low in zip((_longest_step(own), 0.5, least[2]), least, strict=True)]
    best, step = loss(row), _FIRST_STEP
    while step > _LEAST_STEP:
        tries = [[value * math.exp(order.gauss(0, step)) for value in row] for _ in range(12)]
        for index in range(3):
            tries += [[v * f if i == index else v for i, v in enumerate(row)] for f in (1 + step, 1 / (1 + step))]
        lost = [(loss(t), t) for t in ([max(v, low) for v, low in zip(each, least, strict=True)] for each in tries)]
        first = min(lost)
        if first[0] < best:
            best, row = first
        else:
            step /= 1.4
    return PersistentTimes(*row), math.sqrt(best / len(own))


def _longest_step(own: Sequence[Sample]) -> float:
    """What a K tile would take if nothing else took any time, in the sample in which it would be shortest."""
    unit = PersistentTimes(1.0, 0.0, 0.0)
    steps = []
    for sample in own:
        free = sample.how._replace(traffic=Traffic(1e9, 8.0, launch_us=0.0), times=unit)
        steps.append(sample.us / persistent_us(sample.work._replace(operations=0.0), free, _ANY))
    return min(steps)


def report(found: Sequence[Sample], target: TargetSm) -> list[str]:
    """Lines: a row for each configuration, then the regret on each problem."""
    lines, rows = [], {}
    for key in dict.fromkeys(sample.key for sample in found):
        own = [sample for sample in found if sample.key == key]
        rows[key], error = fitted(own, target)
        step, tile, epilogue = rows[key].step_us, rows[key].tile_us, rows[key].epilogue_us
        numbers = f"PersistentTimes({step:.3f}, {tile:.2f}, {epilogue:.2f})"
        lines.append(f"    {key}: {numbers},  # {len(own)} times, rms {error:.2f}")
    for problem in dict.fromkeys(sample.problem for sample in found):
        here = [sample for sample in found if sample.problem == problem]
        first = min(here, key=lambda sample: sample.predicted(rows[sample.key], target))
        best = min(here, key=lambda sample: sample.us)
        said = first.predicted(rows[first.key], target)
        text = f"{problem}: first {first.key} group {first.how.group}, {first.us:.1f} us (said {said:.1f})"
        lines.append(f"{text}, {100 * (first.us / best.us - 1):.1f} % above {best.key} group {best.how.group}")
    return lines


def _arguments(problem: Problem) -> GemmArguments:
    """The problem's arguments without memory."""

    def blank(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=getattr(torch, problem.dtype), device="meta")

    m, n, k = problem.m, problem.n, problem.k
    b = blank(n, k).t() if problem.b_major == "k" else blank(k, n)
    extents = {"M": m, "N": n, "1": 1}
    operands: dict[str, Any] = {
        name: blank(*(extents[extent] for extent in shape.split(","))) for name, shape in problem.row.operands.items()
    }
    outputs = {name: blank(m, n // 2 if problem.row.halved else n) for name in problem.row.outputs}
    epilogue = EpilogueArguments(problem.row.function, **operands, **(problem.row.numbers or {}), **outputs)
    return GemmArguments(blank(m, k), b, blank(m, n), torch.float32, epilogue)


def main(arguments: Sequence[str]) -> int:
    """The command line: a suite's JSON, and the target that it was measured on."""
    if len(arguments) != 2:
        print(__doc__)
        return 2
    target = TargetSm(arguments[1])
    found = samples(json.loads(Path(arguments[0]).read_text(encoding="utf-8")), target)
    print("\n".join(report(found, target)) or "the file has no times of these families: --peers operators")
    return 0 if found else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
