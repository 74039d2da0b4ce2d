# SPDX-License-Identifier: Apache-2.0
"""``GemmLaunch``: an artifact and ``GemmArguments`` brought together once, so that each further run is one call."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

from epifuse.arguments import GemmArguments
from epifuse.binding import Bound
from epifuse.errors import UnsupportedError
from epifuse.records import NamedTuple
from epifuse.runtime.artifact import CompiledArtifact
from epifuse.runtime.launch import PreparedLaunch, current_device, current_stream
from epifuse.runtime.rounding import round_to
from epifuse.workspace import Workspace
from epifuse_cutedsl.configs.sm80 import Sm80Config
from epifuse_cutedsl.fuse.params import EpilogueTraits, values
from epifuse_cutedsl.launch import Launcher, bytes_of, on_stream, zeroed_workspace
from epifuse_cutedsl.operands import strides_mkl
from epifuse_cutedsl.run_workspace import RunWorkspace


class Compiled(NamedTuple):
    """An image with what a launch needs beside it."""

    launcher: Launcher
    epilogue_traits: EpilogueTraits
    kinds: tuple[Any, ...]
    """What of its arguments it was compiled for; others may differ in extents, strides, addresses and numbers."""
    copies: tuple[Launcher | None, Launcher | None] = (None, None)
    """What copies A and B before, where they are copied."""


_STREAMS_KEPT = 16


class GemmLaunch:
    """What does not change from run to run. Kept in the arguments' memo, and so refers to tensors, never to them."""

    def __init__(
        self,
        config: Any,
        group: int,
        args: GemmArguments,
        artifact: CompiledArtifact,
        workspace: RunWorkspace,
    ) -> None:
        _require_data(args)
        self.artifact = artifact
        self._compiled: Compiled = artifact.compiled_obj
        self._bound = args.bound
        self._device = args.A.device
        self._index = self._device.index or 0
        self._batches = args.problem_size.L
        self._workspace, self._workspace_bytes = workspace, workspace.bytes
        self._sources = (args.A.view, args.B.view)
        self._grid, self._main, self._tiles = self._layout(config, group, args)
        scalars = [value for value in args.loads if isinstance(value, torch.Tensor)]
        self._changing = self._device.type != "cpu" and any(t.device.type == "cpu" for t in scalars)
        self._operands = [args.A.view, args.B.view, *args.outputs, *scalars]
        self._repeats = self._device.type != "cpu" and not self._workspace_bytes and not self._changing
        self._prepared: dict[int, PreparedLaunch] = {}

    def _layout(
        self, config: Sm80Config, group: int, args: GemmArguments
    ) -> tuple[tuple[int, int, int], list[Any], list[int]]:
        """The grid, the main loop's parameters, and the epilogue's tiles along M and N."""
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
            memory = self._memory(workspace)
            for launcher, grid, copy_numbers, _ in self._copies(memory):
                launcher.prepare(self._index, address, grid, copy_numbers).run()
            numbers = self._numbers(memory)
            prepared = self._compiled.launcher.prepare(self._index, address, self._grid, numbers)
            prepared.run()
            if self._repeats:
                if len(self._prepared) >= _STREAMS_KEPT:
                    self._prepared.clear()
                self._prepared[address] = prepared

    def _numbers(self, memory: torch.Tensor | None) -> list[Any]:
        numbers = self._main_for(memory) + values(self._bound, self._compiled.epilogue_traits, self._batches)
        if memory is not None and self._workspace.reduction_bytes:
            numbers += [memory.data_ptr(), *self._tiles]
        return numbers

    def _main_for(self, memory: torch.Tensor | None) -> list[Any]:
        """The main loop's parameters for a run with that workspace."""
        return self._main

    def _copies(self, memory: torch.Tensor | None) -> Iterator[tuple[Launcher, tuple[int, int, int], list[int], Any]]:
        """The copies to be made first: launcher, grid, numbers and source of each."""
        if memory is None:
            return
        places = zip(self._workspace.copies, self._compiled.copies, self._sources, self._workspace.offsets, strict=True)
        for copy, launcher, source, offset in places:
            if copy is not None and launcher is not None and copy.bytes:
                yield launcher, copy.grid, copy.numbers(source.data_ptr(), memory.data_ptr() + offset), source

    def _emulate(self, workspace: Any) -> None:
        memory, tensors = self._memory(workspace), self._operands
        for launcher, grid, copy_numbers, source in self._copies(memory):
            launcher.emulated(grid, copy_numbers, [source, memory])
        if memory is not None:
            tensors = [*tensors, memory]
        self._compiled.launcher.emulated(self._grid, self._numbers(memory), tensors)

    def _memory(self, workspace: Any) -> torch.Tensor | None:
        """The run's scratch memory, its counters zero: what was given, or memory of the run's own; None: it needs none.

        Raises:
            OperandError: what was given is too small, not aligned, or not on the operands' device.
        """
        zero_bytes = self._workspace.zero_bytes
        if not self._workspace_bytes:
            return None
        if workspace is None:
            return zeroed_workspace(self._workspace_bytes, zero_bytes, self._device)
        given = workspace if isinstance(workspace, Workspace) else Workspace(workspace)
        memory = bytes_of(given.data, self._workspace_bytes, self._device)
        if given.leading_zero_bytes < zero_bytes:
            memory[:zero_bytes].zero_()
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
