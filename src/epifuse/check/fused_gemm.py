# SPDX-License-Identifier: Apache-2.0
"""The workshop's check: ``relu(A @ B + bias)`` by any operator, or by a learner's function, on every kind of edge."""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from epifuse import emulator
from epifuse.check import cases, mapping
from epifuse.check.cases import judge
from epifuse.check.subjects import (
    BLOCKS_M,
    GROUPS,
    CheckError,
    LearnerSubject,
    Lesson,
    OperatorSubject,
    Subject,
    fused,
    operators,
)
from epifuse.check.verdict import Report, Section
from epifuse.check.writes import count_learner, count_operator
from epifuse.discovery import explain
from epifuse.emulator import chips
from epifuse.target import TargetLike

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
PRIMES = (131, 131, 67)
"""Primes above the tile along M, N and K: several tiles, the last one ragged, in every tile of the workshop."""
ROUNDING_STAGE = (
    "Rounding: A and B enter as they are, the product and the bias and the ReLU are float32, and the one rounding, to "
    "nearest even, is the store to the output's dtype. (A @ B + bias).relu() in half precision rounds before the bias."
)

Progress = Callable[[str, int, int], None]


def silent(text: str, done: int, total: int) -> None:
    """No progress."""


@dataclass(frozen=True)
class Plan:
    """How much is checked, and where. ``limit`` operators of each family; 0: every one, every configuration in every
    case; None: two, or four on a GPU, where only compiling takes time.

    ``tails`` bounds how many of the 343 sizes of the tails are taken, shuffled by the seed; 0: all of them.
    """

    device: str = "cpu"
    target: TargetLike = None
    seed: int = 0
    limit: int | None = None
    tails: int = 0
    progress: Progress = silent

    @property
    def place(self) -> str:
        """Where tensors live: an emulated GPU takes those of the CPU."""
        return "cpu" if self.device == "emulator" else self.device

    @property
    def share(self) -> int:
        """How many operators of each family are checked; 0: all."""
        return (4 if self.device == "cuda" else 2) if self.limit is None else self.limit

    @property
    def few(self) -> bool:
        """Whether only samples are taken: each launch on an emulated GPU takes a good part of a second."""
        return self.device == "emulator"

    @property
    def most_tails(self) -> int:
        """How many sizes of the tails are taken; 0: all."""
        return self.tails or (10 if self.few else 0)

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """With the device there.

        Raises:
            CheckError: there is none.
        """
        self.require_device()
        if self.device == "emulator":
            with emulator.device(str(self.target or "80")):
                yield
            return
        yield

    def require_device(self) -> None:
        """Refuse a device or a target that is not there.

        Raises:
            CheckError: (a ValueError) it is not.
        """
        if self.device == "cuda" and not torch.cuda.is_available():
            raise CheckError(
                "There is no CUDA device here.", advice="Use --device cpu, or --device emulator for a GPU kernel."
            )
        if self.device not in ("cpu", "cuda", "emulator"):
            raise CheckError(f"There is no device {self.device!r}.", advice="Devices: cpu, cuda, emulator.")
        if self.device == "emulator" and self.target is not None and str(self.target) not in chips.names():
            known = ", ".join(chips.names())
            raise CheckError(f"No GPU of sm_{self.target} is emulated.", advice=f"Emulated: {known}.")


def check_operators(plan: Plan) -> Report:
    """Check the operators that discovery finds: of each family and dtype the best and those least like it."""
    report = Report("fused_gemm", where_of(plan))
    report.notes.append(ROUNDING_STAGE)
    report.section("tile mapping").add(mapping.check())
    with plan.entered():
        for dtype in DTYPES:
            found = _operators(plan, dtype, report)
            for subject in found:
                suite = _Suite(plan, report, dtype)
                suite.run([subject])
                count_operator(subject, dtype, suite.section("tiles written once, counted on the device"), plan.place)
    return report


def check_lesson(lesson: Lesson, plan: Plan) -> Report:
    """Check a learner's function by the same cases."""
    report = Report("fused_gemm", where_of(plan))
    report.notes.append(ROUNDING_STAGE)
    section = report.section("tile mapping")
    if lesson.tile_of is None:
        section.add(mapping.check())
        section.skipped.append("your file has no tile_of(pid, tiles_m, tiles_n, group): ours was checked instead")
    else:
        section.add(mapping.check(lesson.tile_of, lesson.path.name))
    if not lesson.takes_out:
        report.notes.append(
            "fused_gemm has no parameter out: its output is memory of its own, so that unwritten elements, writes "
            "outside and tiles written twice cannot be seen. Add out=None and write to it where it is given."
        )
    subjects = [LearnerSubject(lesson, m, g) for m, g in itertools.product(BLOCKS_M, (*GROUPS, 2))]
    with plan.entered():
        for dtype in DTYPES:
            suite = _Suite(plan, report, dtype)
            suite.run(subjects)
            if lesson.takes_out:
                count_learner(subjects, dtype, suite.section("tiles written once, in grouped order"), plan.place)
    return report


def where_of(plan: Plan) -> str:
    """What is checked there, for the report's title."""
    if plan.device == "cuda" and torch.cuda.is_available():
        return torch.cuda.get_device_name()
    if plan.device == "emulator":
        return f"an emulated sm_{plan.target or '80'}"
    return "the CPU"


def _operators(plan: Plan, dtype: torch.dtype, report: Report) -> list[OperatorSubject]:
    shape = (256, 256, 256)
    probe = cases.make("probe", torch.zeros(shape[:2]), torch.zeros(shape[1:]), torch.zeros(shape[1]), dtype,
                       device=plan.place)  # fmt: skip
    args = fused(probe.a.view, probe.b.view, probe.bias.view, probe.output().view)
    found = operators(args, plan.target, plan.share)
    if not found:
        section = report.section(f"operators for {dtype}")
        section.skipped.append(str(explain(args, target_sm=plan.target)))
    return found


class _Suite:
    """All cases of one dtype, for subjects that take them in turn."""

    def __init__(self, plan: Plan, report: Report, dtype: torch.dtype) -> None:
        self.plan, self.report, self.dtype = plan, report, dtype
        self.generator = torch.Generator().manual_seed(plan.seed)
        self.order = random.Random(plan.seed)
        self.label = str(dtype).removeprefix("torch.")

    def section(self, name: str) -> Section:
        return self.report.section(f"{name}, {self.label}")

    def run(self, subjects: Sequence[Subject]) -> None:
        single = len(subjects) == 1
        name = f" [{subjects[0].name}]" if single else ""
        few = subjects[:1] if self.plan.few else subjects
        self._section(f"worked example{name}", few, [self._example()])
        self._section(f"K = 0 gives relu(bias){name}", few, [self._no_k()])
        self._section(f"NaN and infinities{name}", few, self._specials())
        self._section(f"rounding stage{name}", few, self._rounding())
        self._tails(f"tails{name}", subjects)
        self._section(f"normal data{name}", few[::4], self._normals())
        if single:
            self._section(f"layouts{name}", few, self._layouts())

    def _section(self, name: str, subjects: Sequence[Subject], problems: Sequence[cases.Problem]) -> None:
        section = self.section(name)
        pairs = list(itertools.product(subjects, problems))
        for done, (subject, problem) in enumerate(pairs):
            self.plan.progress(section.name, done, len(pairs))
            section.add(judge(subject, problem))
        self.plan.progress(section.name, len(pairs), len(pairs))

    def _tails(self, name: str, subjects: Sequence[Subject]) -> None:
        """Every M, N and K of {0, 1, 7, tile - 1, tile, tile + 1, prime}: all for one subject, dealt out among many."""
        section = self.section(name)
        jobs: list[tuple[Subject, tuple[int, ...]]] = []
        picks = list(itertools.product(range(7), repeat=3))
        self.order.shuffle(picks)
        deal_out = len(subjects) > 1 and self.plan.share > 0
        for number, pick in enumerate(picks):
            takers = [subjects[number % len(subjects)]] if deal_out else subjects
            jobs += [(subject, tail_sizes(subject.tile, pick)) for subject in takers]
        most = self.plan.most_tails
        if most and most < len(jobs):
            section.skipped.append(f"{len(jobs) - most} of {len(jobs)} sizes were left out")
            jobs = jobs[:most]
        for done, (subject, (m, n, k)) in enumerate(jobs):
            if done % 10 == 0:
                self.plan.progress(section.name, done, len(jobs))
            section.add(judge(subject, self._integers(m, n, k)))
        self.plan.progress(section.name, len(jobs), len(jobs))

    def _integers(self, m: int, n: int, k: int, layouts: tuple[str, str, str] = ("row",) * 3) -> cases.Problem:
        return cases.integers(m, n, k, self.dtype, self.generator, device=self.plan.place, layouts=layouts)

    def _make(self, case: str, a: object, b: object, bias: object) -> cases.Problem:
        x, y, z = (torch.as_tensor(value, dtype=torch.float64) for value in (a, b, bias))
        return cases.make(case, x, y, z, self.dtype, device=self.plan.place)

    def _example(self) -> cases.Problem:
        return self._make("[[1,2],[3,4]] @ [[1,-1],[2,1]] + [-6,1]", [[1, 2], [3, 4]], [[1, -1], [2, 1]], [-6, 1])

    def _no_k(self) -> cases.Problem:
        m, n = 133, 70
        bias = torch.randn(n, generator=self.generator, dtype=torch.float32)
        return self._make("133 x 70 x 0", torch.empty(m, 0), torch.empty(0, n), bias)

    def _specials(self) -> list[cases.Problem]:
        problem = self._integers(37, 70, 40)
        problem.a.view[5, 3] = torch.nan
        problem.b.view[7, 66] = torch.inf
        problem.bias.view[11] = torch.nan
        problem.bias.view[12] = -torch.inf
        problem.bias.view[13] = torch.inf
        return [problem]

    def _rounding(self) -> list[cases.Problem]:
        """A sum one above what the dtype holds, less that: 1 where the rounding is last, 0 where it comes before."""
        if self.dtype == torch.float32:
            return []
        power = 2.0 ** (11 if self.dtype == torch.float16 else 8)
        found = [self._make(f"{power:g} + 1 - {power:g}", [[power, 1.0]], [[1.0], [1.0]], [-power])]
        # And a bias that the dtype does not hold, beside a sum that makes it count.
        fine = 1.0 + 2.0**-12
        found.append(self._make(f"-1 + {fine}", [[-1.0]], [[1.0]], [fine]))
        return found

    def _normals(self) -> list[cases.Problem]:
        shapes = [(48, 80, 100)] if self.plan.few else [(131, 197, 300), (1, 64, 1000), (200, 1, 77)]
        return [cases.normals(*shape, self.dtype, self.generator, device=self.plan.place) for shape in shapes]

    def _layouts(self) -> list[cases.Problem]:
        names = ("row", "odd", "strided", "column")
        combinations = [(x, x, x) for x in names] + [
            (names[i], names[(i + 1) % 4], names[(i + 2) % 4]) for i in range(4)
        ]
        return [self._integers(67, 70, 41, layouts) for layouts in combinations[: 3 if self.plan.few else None]]


def tail_sizes(tile: tuple[int, int, int], pick: Sequence[int]) -> tuple[int, ...]:
    """M, N and K: each pick's entry of (0, 1, 7, tile - 1, tile, tile + 1, a prime)."""
    return tuple(
        (0, 1, 7, extent - 1, extent, extent + 1, prime)[i] for extent, prime, i in zip(tile, PRIMES, pick, strict=True)
    )
