# SPDX-License-Identifier: Apache-2.0
"""A rule of the strict emulator as a pair of kernels: one that breaks it and one that just does not."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from ptxlab import run_kernel

from epifuse.emulator.reports import ExecutionError

SOUND_SEEDS = range(10)
BROKEN_SEEDS = range(3)
OWN = """mov.u32 %r1, %tid.x; ld.param.u64 %d1, [p0]; mov.u32 %r2, smem; shl.b32 %r3, %r1, 2; add.u32 %r4, %r2, %r3;
mul.wide.u32 %d2, %r1, 4; add.u64 %d3, %d1, %d2; shr.u32 %r5, %r1, 5; setp.eq.u32 %p8, %r1, 0;
"""
"""%r1 thread, %r2 smem, %r4 the thread's word, %d3 its global word, %r5 the warp, %p8 whether it is thread 0."""


@dataclasses.dataclass(frozen=True)
class Rule:
    """`text` has a place {x}: `broken` put there must raise `error` with `says` in its sentence, `sound` must not.

    `at` is part of the PTX line that the report has to point at; "" where any line will do.
    """

    name: str
    text: str
    broken: str
    sound: str
    error: type[ExecutionError]
    says: str
    at: str = ""
    threads: int = 64
    shared: int = 2048
    target: str = "100a"
    cluster: int = 1
    grid: int = 0
    lane: int | None = None
    arrays: Callable[[], list[Any]] = lambda: [np.zeros(256, np.uint32)]

    def run(self, change: str, seed: int) -> Any:
        """Run with one of the two texts in the place."""
        body = (OWN + self.text.replace("{x}", change)).replace(";", ";\n")
        return run_kernel(
            body, self.arrays(), threads=self.threads, shared=self.shared, target=self.target,
            grid=self.grid or self.cluster, cluster=self.cluster, seed=seed,
        )  # fmt: skip


def params(rules: list[Rule]) -> list[Any]:
    """The rules as test parameters."""
    return [pytest.param(rule, id=rule.name) for rule in rules]


def check_broken(rule: Rule) -> None:
    """The broken kernel is reported on every seed, with its place."""
    for seed in BROKEN_SEEDS:
        with pytest.raises(rule.error, match=rule.says) as caught:
            rule.run(rule.broken, seed)
        place = caught.value.place
        assert place.kernel == "k"
        if rule.at:
            assert place.cta is not None
            assert place.warp is not None
            assert place.line is not None
            assert rule.at in place.text, (place.text, str(caught.value))
        if rule.lane is not None:
            assert place.lane == rule.lane, str(caught.value)


def check_sound(rule: Rule) -> None:
    """The sound kernel is silent on every seed."""
    for seed in SOUND_SEEDS:
        rule.run(rule.sound, seed)


INIT = "@%p8 mbarrier.init.shared::cta.b64 [smem+{at}], {count}; fence.mbarrier_init.release.cluster; bar.sync 0;\n"


def init(at: int, count: int) -> str:
    """Make an mbarrier, known to the whole CTA."""
    return INIT.format(at=at, count=count)


def wait(name: str, at: int, parity: int = 0) -> str:
    """Wait for a phase."""
    return f"{name}: mbarrier.try_wait.parity.shared::cta.b64 %p9, [smem+{at}], {parity}; @!%p9 bra {name};\n"
