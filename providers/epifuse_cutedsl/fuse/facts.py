# SPDX-License-Identifier: Apache-2.0
"""What the host knows of a kernel before an epilogue is traced into it."""

from __future__ import annotations

from typing import Any, NamedTuple


class KernelFacts(NamedTuple):
    """What the host knows of the kernel around an epilogue.

    Tile extents, threads of the epilogue (whole warps), compute capability; length of a run, runs of a thread along
    the axis (``positions``, ``lanes * run`` apart), and neighbouring lanes that share a line (``lanes``, a power of
    two). Steps go across the axis: a thread keeps its positions. Where they go along it (``steps_along``), a thread
    keeps its ``lines``, those of one fragment, and sees other positions at every step. A warp covers whole lines.
    ``barrier`` is the number of the named barrier at which the epilogue's threads meet; a kernel whose warpgroups run
    epilogues of their own puts a device integer there while it is traced.
    """

    tile_m: int
    tile_n: int
    threads: int
    capability: int
    run: int
    positions: int
    lanes: int
    steps_along: bool = False
    lines: int = 1
    barrier: Any = 0
