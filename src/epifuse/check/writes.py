# SPDX-License-Identifier: Apache-2.0
"""Every tile written exactly once: counted by the device for operators, by watching torch for a learner's function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from epifuse.arguments import EpilogueArguments, GemmArguments
from epifuse.check import cases, guard
from epifuse.check.subjects import AnotherServesError, LearnerSubject, OperatorSubject, RefusedError
from epifuse.check.verdict import Finding, Kind, Section
from epifuse.check.watch import OutOfTimeError, Region, Writes, time_box
from epifuse.tile_order import order

ROUNDS = 3


def add_to(accum: Any, C: Any) -> Any:
    """Reads what stands in the output and adds to it."""
    D = accum + C
    return D


def count_operator(subject: OperatorSubject, dtype: torch.dtype, section: Section, device: str) -> None:
    """Let the device count its own writes.

    A is a column of ones and B a row of ones, so every accumulator is 1; the epilogue reads its output C, which is the
    very memory of D, and writes C + 1. So D counts, element by element, how often a thread carried a tile through its
    epilogue: 0 is a tile that no program took, 2 one that two took. Two programs that take the same tile at the same
    moment could both read the old count and hide each other; they would have to do so in every one of the rounds, each
    of which must raise every count by exactly one. A program that stores twice without reading again changes nothing
    that anyone could see. Counts stay below 2^8, which every dtype holds.
    """
    tile_m, tile_n, _ = subject.tile
    for m, n in ((3 * tile_m, 2 * tile_n), (2 * tile_m + 1, 3 * tile_n - 1), (9 * tile_m - 5, tile_n + 7)):
        case = f"{m} x {n}, written {ROUNDS} times"
        a, b = (guard.filled(torch.ones(*shape), dtype, "row", device).view for shape in ((m, 1), (1, n)))
        out = guard.filled(torch.zeros(m, n), dtype, "row", device)
        epilogue = EpilogueArguments(add_to, C=out.view, D=out.view)
        args = GemmArguments(a, b, out.view, accumulator_type=torch.float32, epilogue=epilogue)
        try:
            for round_ in range(1, ROUNDS + 1):
                subject.run_arguments(args)
                wrong = out.view != round_
                if bool(wrong.any()):
                    place = [int(i) for i in wrong.nonzero()[0]]
                    got = (out.view[tuple(place)] - (round_ - 1)).item()
                    kind = Kind.UNWRITTEN if got < 1 else Kind.TWICE
                    where = f"D[{place[0]}, {place[1]}] in round {round_}"
                    section.add([Finding(kind, subject.name, case, where, "1 write", f"{got:g} writes")])
                    break
            else:
                section.add([] if out.broken() is None else [Finding(Kind.OUTSIDE, subject.name, case)])
        except AnotherServesError:
            section.add(None)
        except RefusedError as refusal:
            section.skipped.append(f"{subject.name}: {refusal}")
        except Exception as error:  # noqa: BLE001 - whatever a provider raises is a finding
            section.add([Finding(Kind.RAISED, subject.name, case, hint=f"{type(error).__name__}: {error}")])


def count_learner(subjects: Sequence[LearnerSubject], dtype: torch.dtype, section: Section, device: str) -> None:
    """Watch torch's writes to ``out``: every element once, and tiles in grouped order."""
    unseen = 0
    for subject in subjects:
        # Five rows of tiles: incomplete last groups for 2, 4 and 8; and ragged last tiles.
        m, n = 4 * subject.block_m + 3, 2 * subject.tile[1] - 5
        generator = torch.Generator().manual_seed(m)
        problem = cases.integers(m, n, 33, dtype, generator, device=device)
        out = problem.output()
        try:
            with time_box(cases.SECONDS), Writes(out.view) as writes:
                subject.run(problem.a.view, problem.b.view, problem.bias.view, out.view)
        except OutOfTimeError as late:
            section.add([Finding(Kind.SLOW, subject.name, problem.case, hint=str(late))])
            continue
        except Exception as error:  # noqa: BLE001 - as in cases.judge
            section.add([Finding(Kind.RAISED, subject.name, problem.case, hint=f"{type(error).__name__}: {error}")])
            continue
        unseen += not writes.seen
        section.add(_counted(subject, problem, writes) or _ordered(subject, problem, writes) if writes.seen else [])
    if unseen:
        section.skipped.append(
            f"{unseen} of {len(subjects)} calls wrote by other means than torch (a kernel of your own, numpy): "
            "their writes and their order cannot be watched; the guard bands and NaN above still hold"
        )


def _counted(subject: LearnerSubject, problem: cases.Problem, writes: Writes) -> list[Finding]:
    counts = writes.counts
    wrong = counts != 1
    if not bool(wrong.any()):
        return []
    m, n = (int(i) for i in wrong.nonzero()[0])
    got = int(counts[m, n].item())
    kind, hint = Kind.UNWRITTEN, ""
    if got > 1:
        kind, hint = Kind.TWICE, "out is written once, at the end of each tile: no clearing before, no sum kept in it"
    return [Finding(kind, subject.name, problem.case, f"D[{m}, {n}]", "1 write", f"{got} writes", hint)]


def _ordered(subject: LearnerSubject, problem: cases.Problem, writes: Writes) -> list[Finding]:
    block_m, block_n, _ = subject.tile
    m, n = problem.shape
    wanted = order(-(-m // block_m), -(-n // block_n), subject.group)
    got: list[tuple[int, int]] = []
    for region in writes.regions:
        tile = _tile(region, block_m, block_n)
        if tile is None:
            return []  # not written tile by tile, so that there is no order to judge
        if tile not in got:
            got.append(tile)
    for number, (right, found) in enumerate(zip(wanted, got, strict=False)):
        if right != found:
            where = f"the store number {number}"
            hint = "tile_of(pid, tiles_m, tiles_n, group) for pid = 0, 1, 2, ... gives the order"
            return [Finding(Kind.ORDER, subject.name, problem.case, where, f"tile {right}", f"tile {found}", hint)]
    return []


def _tile(region: Region, block_m: int, block_n: int) -> tuple[int, int] | None:
    if region.rows < 1 or region.columns < 1:
        return None
    first = (region.m // block_m, region.n // block_n)
    last = ((region.m + region.rows - 1) // block_m, (region.n + region.columns - 1) // block_n)
    return first if first == last else None
