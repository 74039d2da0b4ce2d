# SPDX-License-Identifier: Apache-2.0
"""``GemmLaunch``: an artifact and ``GemmArguments`` brought together once, so that each further run is one call."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from epifuse.arguments import GemmArguments
from epifuse.binding import Bound
from epifuse.errors import UnsupportedError
from epifuse.runtime.artifact import CompiledArtifact
from epifuse.runtime.launch import PreparedLaunch, current_device, current_stream
from epifuse.runtime.rounding import round_to
from epifuse.workspace import Workspace
from epifuse_cutedsl.configs.sm80 import Sm80Config
from epifuse_cutedsl.fuse.params import EpilogueTraits, values
from epifuse_cutedsl.launch import Launcher, bytes_of, on_stream, zeroed_workspace
from epifuse_cutedsl.operands import strides_mkl


@dataclass(frozen=True)
class Compiled:
    """An image with what a launch needs beside it."""

    launcher: Launcher
    epilogue_traits: EpilogueTraits
    kinds: tuple[Any, ...]
    """What of its arguments it was compiled for; others may differ in extents, strides, addresses and numbers."""


_STREAMS_KEPT = 16


class GemmLaunch:
    """What does not change from run to run. Kept in the arguments' memo, and so refers to tensors, never to them."""

    def __init__(
        self,
        config: Any,
        group: int,
        args: GemmArguments,
        artifact: CompiledArtifact,
        workspace_bytes: tuple[int, int],
    ) -> None:
        _require_data(args)
        self.artifact = artifact
        self._compiled: Compiled = artifact.compiled_obj
        self._bound = args.bound
        self._device = args.A.device
        self._index = self._device.index or 0
        self._grid, self._main, self._tiles = self._layout(config, group, args)
        self._workspace_bytes, self._zero_bytes = workspace_bytes
        scalars = [value for value in args.loads if isinstance(value, torch.Tensor)]
        self._changing = self._device.type != "cpu" and any(t.device.type == "cpu" for t in scalars)
        self._operands = [args.A.view, args.B.view, *args.outputs, *scalars]
        self._repeats = self._device.type != "cpu" and not workspace_bytes[0] and not self._changing
        self._prepared: dict[int, PreparedLaunch] = {}

    def _layout(
        self, config: Sm80Config, group: int, args: GemmArguments
    ) -> tuple[tuple[int, int, int], list[Any], list[int]]:
        """The grid, the main loop's parameters (the sixth is L), and the epilogue's tiles along M and N."""
        m, n, k, batches = args.problem_size
        tiles = [-(-m // config.tile_m), -(-n // config.tile_n)]
        strides = [*strides_mkl(args.A.traits, k_last=True), *strides_mkl(args.B.traits, k_last=False)]
        main = [args.A.data_ptr(), args.B.data_ptr(), m, n, k, batches, *strides, *tiles, group]
        return (tiles[0] * tiles[1] * batches, 1, 1), main, tiles

    def __call__(self, stream: Any, workspace: Any) -> None:
        """Run on ``stream`` (None: torch's current one) with ``workspace`` or one of the run's own."""
        if stream is None and self._prepared and current_device() == self._index:
            # The second run and all later ones on a stream: one look-up and one call of the driver.
            prepared = self._prepared.get(current_stream(self._index))
            if prepared is not None and not prepared.again():
                return
        if self._device.type == "cpu":
            if self._grid[0]:
                self._emulate(workspace)
            else:
                _fill_identities(self._bound)
        elif current_device() == self._index:
            self._launch(stream, workspace)
        else:
            with torch.cuda.device(self._index):
                self._launch(stream, workspace)

    def _launch(self, stream: Any, workspace: Any) -> None:
        with on_stream(stream, self._index) as address:
            if not self._grid[0]:
                _fill_identities(self._bound)
                return
            numbers = self._numbers()
            if self._workspace_bytes:
                memory = self._memory(workspace)
                numbers += [memory.data_ptr(), *self._tiles]
            prepared = self._compiled.launcher.prepare(self._index, address, self._grid, numbers)
            prepared.run()
            if self._repeats:
                if len(self._prepared) >= _STREAMS_KEPT:
                    self._prepared.clear()
                self._prepared[address] = prepared

    def _numbers(self) -> list[Any]:
        return self._main + values(self._bound, self._compiled.epilogue_traits, self._main[5])

    def _emulate(self, workspace: Any) -> None:
        numbers, tensors = self._numbers(), self._operands
        if self._workspace_bytes:
            memory = self._memory(workspace)
            numbers += [memory.data_ptr(), *self._tiles]
            tensors = [*tensors, memory]
        self._compiled.launcher.emulated(self._grid, numbers, tensors)

    def _memory(self, workspace: Any) -> torch.Tensor:
        """The run's scratch memory, its counters zero: what was given, or memory of the run's own.

        Raises:
            OperandError: what was given is too small, not aligned, or not on the operands' device.
        """
        if workspace is None:
            return zeroed_workspace(self._workspace_bytes, self._zero_bytes, self._device)
        given = workspace if isinstance(workspace, Workspace) else Workspace(workspace)
        memory = bytes_of(given.data, self._workspace_bytes, self._device)
        if given.leading_zero_bytes < self._zero_bytes:
            memory[: self._zero_bytes].zero_()
        return memory


def _require_data(args: GemmArguments) -> None:
    traits = (args.A.traits, args.B.traits, *args.bound.load_traits, *args.bound.output_traits)
    if any(t is not None and t.address is None for t in traits):
        raise UnsupportedError(
            "The arguments hold fake tensors, which have no data to compute with.",
            advice="Discover and compile with fake tensors, then run with GemmArguments of real ones.",
        )


def _fill_identities(bound: Bound) -> None:
    """The results of reductions over nothing; everything else of an empty problem is empty too."""
    for reduce in bound.plan.reduces:
        value = {"sum": 0.0, "mean": math.nan, "max": -math.inf, "min": math.inf}[reduce.combine]
        bound.outputs[reduce.destination].copy_(round_to(torch.tensor(value, dtype=torch.float64), reduce.dtype))
