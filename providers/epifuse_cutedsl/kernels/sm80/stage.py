# SPDX-License-Identifier: Apache-2.0
"""The accumulator tile, once through shared memory: from the main loop's registers to the epilogue's runs.

How the tile lies there and who reads what of it says ``tile/stage.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import Int32, cute

from epifuse_cutedsl.fuse.fragment import Fragment, Run, TileCoordinates
from epifuse_cutedsl.kernels.ptx import shared
from epifuse_cutedsl.tile.stage import StageShape


@dataclass(frozen=True)
class Placed:
    """Accumulators in a thread's registers: ``registers[(m, n)]`` lies at (m, n) plus the thread's own position.

    ``packed``: a register holds (m, n) and (m, n + 1), 16 bits each. ``widths`` says how many neighbours along m and
    along n may go into one access, as far as the thread's own position is aligned.
    """

    m: Any
    n: Any
    registers: dict[tuple[int, int], Any]
    widths: tuple[int, int]
    packed: bool = False

    @property
    def transposed(self) -> Placed:
        """Rows as columns; not of packed ones."""
        assert not self.packed
        turned = {(n, m): value for (m, n), value in self.registers.items()}
        return Placed(self.n, self.m, turned, (self.widths[1], self.widths[0]))


def write(shape: StageShape, base: Any, placed: Placed) -> None:
    """Put a thread's accumulators into the staged tile at the shared address ``base``."""
    address = base + shape.offset(placed.m, placed.n)
    bits = 8 * shape.element_bytes
    if placed.packed:
        for (m, n), word in placed.registers.items():
            if shape.axis == "n":
                shared.st_shared(address, [word], shape.offset(m, n))
            else:
                shared.st_shared_halves(address, word, (shape.offset(m, n), shape.offset(m, n + 1)))
        return
    most = min(placed.widths[shape.axis == "n"], 16 // shape.element_bytes)
    for places in _neighbours(placed.registers, shape.axis, most):
        values = [placed.registers[place] for place in places]
        shared.st_shared(address, values, shape.offset(*places[0]), kind=f"b{bits}")


def _neighbours(places: dict[tuple[int, int], Any], axis: str, most: int) -> list[list[tuple[int, int]]]:
    """Places in groups of ``most`` neighbours along the axis, each group aligned to ``most``."""
    position = 1 if axis == "n" else 0
    groups: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for place in sorted(places, key=lambda p: (p[1 - position], p[position])):
        groups.setdefault((place[1 - position], place[position] // most), []).append(place)
    assert all(len(group) == most for group in groups.values())
    return list(groups.values())


def read(shape: StageShape, address: Any, accumulator: str) -> list[Any]:
    """The registers of a thread's runs in one line; ``address`` is that of its first run."""
    values: list[Any] = []
    for run in range(shape.runs):
        first = run * shape.lanes * shape.run * shape.element_bytes
        values += read_run(address, first, shape.run, accumulator)
    return values


def read_run(address: Any, displacement: int, length: int, accumulator: str) -> Sequence[Any]:
    """``length`` neighbours as scalars of the accumulator's dtype; float16 is widened to Float32."""
    if accumulator == "float16":
        if length == 1:
            return shared.ld_shared_f16(address, displacement)
        words = min(4, length // 2)
        return [
            value
            for piece in range(length // (2 * words))
            for value in shared.ld_shared_f16x2(address, displacement + 4 * words * piece, count=words)
        ]
    kind, size = {"float32": ("f32", 4), "int32": ("s32", 4), "float64": ("f64", 8)}[accumulator]
    count = min(length, 16 // size)
    return [
        value
        for piece in range(length // count)
        for value in shared.ld_shared(address, displacement + size * count * piece, kind=kind, count=count)
    ]


def places(shape: StageShape, tile: TileCoordinates, line: Any, place: Any) -> Fragment:
    """A thread's runs in one line of the staged tile, without registers."""
    runs = []
    for index in range(shape.runs):
        along = place + index * shape.lanes * shape.run
        m, n = (line, along) if shape.axis == "n" else (along, line)
        runs.append(Run(index * shape.run, shape.run, tile.m0 + m, tile.n0 + n, position=index, line=0))
    return Fragment(shape.axis, tuple(runs))


@cute.jit
def repeat(visit: Any, steps: Int32, line: Any, address: Any, pieces: Any, state: Any) -> Any:
    """``visit`` ``steps`` times; the state afterwards."""
    for _ in cutlass.range(steps, unroll=1):
        line, address, pieces, state = visit(line, address, pieces, state)
    return state
