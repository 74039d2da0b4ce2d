# SPDX-License-Identifier: Apache-2.0
"""``TmaLaunch``: a launch whose first parameters are the tensor maps of A and B, or of their copies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from epifuse.arguments import GemmArguments
from epifuse.runtime import tensormap
from epifuse_cutedsl.gemm_launch import GemmLaunch
from epifuse_cutedsl.tma_operands import Route, TmaOperand

Box = tuple[int, int, int]


class TmaLaunch(GemmLaunch):
    """Maps of operands are encoded once, those of copies whenever the workspace lies elsewhere than before."""

    _moved: tuple[tuple[int, TmaOperand, Box, int], ...] = ()
    """Of each copy: the position of its map, its operand and box, and where it lies in the workspace."""
    _encoded: tuple[int, list[Any]] | None = None
    """The workspace's address of the last run, and the main loop's parameters for it."""

    def _operand_maps(
        self, args: GemmArguments, routes: Sequence[Route], boxes: Sequence[Box], *, swapped: bool = False
    ) -> list[bytes]:
        """The maps of A and B (``swapped``: B and A) by turns for copies of these boxes; zeros in the place of those
        that wait for a workspace."""
        maps, moved = [bytes(tensormap.BYTES)] * len(boxes), []
        addresses = args.A.data_ptr(), args.B.data_ptr()
        operands = list(zip(routes, addresses, self._workspace.offsets, strict=True))
        operands = operands[::-1] if swapped else operands
        for index, box in enumerate(boxes):
            route, address, offset = operands[index % 2]
            if route.copy is None:
                maps[index] = tensormap.encode(route.operand.tiled_map(address, box), self._device)
            else:
                moved.append((index, route.operand, box, offset))
        self._moved = tuple(moved)
        return maps

    def _main_for(self, memory: torch.Tensor | None) -> list[Any]:
        if memory is None or not self._moved:
            return self._main
        address, encoded = memory.data_ptr(), self._encoded
        if encoded is None or encoded[0] != address:
            main = list(self._main)
            for index, operand, box, offset in self._moved:
                main[index] = tensormap.encode(operand.tiled_map(address + offset, box), self._device)
            encoded = self._encoded = (address, main)
        return encoded[1]
