# SPDX-License-Identifier: Apache-2.0
"""Slots of a plan while it is traced: scalars with as many copies as the value really has.

A value that varies only along the axis has one scalar for each distinct place in a line, one that varies only across it
one for each line, a plain scalar one in all. Arithmetic is done once for each copy, not once for each register.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from epifuse.fusion.ir.node import Broadcast
from epifuse_cutedsl.fuse.fragment import Fragment


@dataclass(frozen=True, slots=True)
class Spread:
    """Along which directions of a fragment a value varies; halved values have half as many columns in a run."""

    along: bool
    across: bool
    halved: bool = False

    @classmethod
    def of(cls, broadcast: Broadcast, axis: str, halved: bool = False) -> Spread:
        """The spread of a value that varies as ``broadcast`` says."""
        n_first = axis == "n"
        return cls(broadcast.n if n_first else broadcast.m, broadcast.m if n_first else broadcast.n, halved)

    def __or__(self, other: Spread) -> Spread:
        return Spread(self.along or other.along, self.across or other.across, self.halved or other.halved)


class Layout:
    """Where the copies of a spread stand: representatives as (run index, place in the run), and their indices."""

    def __init__(self, fragment: Fragment, spread: Spread) -> None:
        self.spread = spread
        self._runs = fragment.runs
        self._length = fragment.length // 2 if spread.halved else fragment.length
        self.representatives = self._representatives(fragment)
        self._table = {self._key(run, place): i for i, (run, place) in enumerate(self.representatives)}

    def _representatives(self, fragment: Fragment) -> list[tuple[int, int]]:
        places = range(self._length) if self.spread.along else range(1)
        first_of: dict[tuple[int, int], int] = {}
        for index, run in enumerate(fragment.runs):
            position = run.position if self.spread.along else 0
            line = run.line if self.spread.across else 0
            first_of.setdefault((position, line), index)
        return [(index, place) for index in first_of.values() for place in places]

    def _key(self, run: int, place: int) -> tuple[int, int, int]:
        it, along = self._runs[run], self.spread.along
        return (it.position if along else 0, it.line if self.spread.across else 0, place if along else 0)

    def index(self, run: int, place: int) -> int:
        """Which copy stands at a place of a run."""
        return self._table[self._key(run, place)]


@dataclass(frozen=True, slots=True)
class Lanes:
    """A slot's scalars under a layout."""

    layout: Layout
    scalars: Sequence[Any]

    @property
    def spread(self) -> Spread:
        """How the value varies."""
        return self.layout.spread

    def at(self, run: int, place: int) -> Any:
        """The scalar at a register of a fragment."""
        return self.scalars[self.layout.index(run, place)]


class Frame:
    """The fragment that is being computed on, and its layouts by spread."""

    def __init__(self, fragment: Fragment) -> None:
        self.fragment = fragment
        self._layouts: dict[Spread, Layout] = {}

    def layout(self, spread: Spread) -> Layout:
        """The layout of a spread."""
        found = self._layouts.get(spread)
        if found is None:
            found = self._layouts[spread] = Layout(self.fragment, spread)
        return found

    def lanes(self, spread: Spread, scalars: Sequence[Any]) -> Lanes:
        """Scalars, in the order of the layout's representatives, as a slot."""
        layout = self.layout(spread)
        assert len(scalars) == len(layout.representatives)
        return Lanes(layout, scalars)

    def map(self, function: Callable[..., Any], operands: Sequence[Lanes], spread: Spread) -> Lanes:
        """``function`` on each copy of the result, with the operands' scalars there."""
        layout = self.layout(spread)
        scalars = [function(*(o.at(run, place) for o in operands)) for run, place in layout.representatives]
        return Lanes(layout, scalars)

    def map_pairs(self, function: Callable[..., Sequence[Any]], operands: Sequence[Lanes], spread: Spread) -> Lanes:
        """As ``map``, for a function of the operands at one copy and of those at the next that gives both results."""
        layout = self.layout(spread)
        at = [[operand.at(run, place) for operand in operands] for run, place in layout.representatives]
        pairs = zip(at[::2], at[1::2], strict=True)
        return Lanes(layout, [value for first, second in pairs for value in function(first, second)])
