# SPDX-License-Identifier: Apache-2.0
"""``PaddedCopy``: an operand that tensor copies cannot move, copied once per run to padded rows along K.

The copy takes any strides and alignments. It belongs to the run: its launch goes before the kernel's on the same
stream, and its memory is part of the run's workspace.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

from epifuse.records import NamedTuple
from epifuse.runtime.tensors import MAX_ALIGNMENT_BYTES, Traits
from epifuse.target import TargetSm
from epifuse_cutedsl.compile import image_of
from epifuse_cutedsl.configs.model import rates_of
from epifuse_cutedsl.configs.padded import WORD_BYTES, PaddedForm
from epifuse_cutedsl.launch import Launcher
from epifuse_cutedsl.run_workspace import ALIGNMENT_BYTES

_LINE_BYTES = 128
_LAUNCH_US = 2.0
_SHARE_WORDS, _SHARE_ELEMENTS = 0.6, 0.3
"""Of the memory's rate, what the copy reaches with words and with single elements. Not measured yet."""
CODES = tuple("qqiiiqqqqii")
"""Struct codes of ``kernels.padded.kernel.PARAMETERS``."""


class PaddedCopy(NamedTuple):
    """A copy of A (``k_last``) or B: (rows of M or N, K) for each batch, or for one where one matrix serves all."""

    source: Traits
    k_last: bool
    rounded: bool = False
    """Whether float32 is rounded to TF32."""

    @property
    def rows(self) -> int:
        """Extent along M or N."""
        return self.source.shape[-2 if self.k_last else -1]

    @property
    def k(self) -> int:
        """Extent along K."""
        return self.source.shape[-1 if self.k_last else -2]

    @property
    def batches(self) -> int:
        """Matrices that are copied."""
        return self.source.shape[0] if len(self.source.shape) == 3 and self.source.strides[0] else 1

    @property
    def pitch(self) -> int:
        """Elements from one row of the copy to the next: whole cache lines, so that a box's rows touch no more of them
        than they fill."""
        step = _LINE_BYTES // self.source.dtype.bytes
        return max(-(-self.k // step), 1) * step

    @property
    def bytes(self) -> int:
        """Bytes in the workspace, a multiple of ``ALIGNMENT_BYTES``."""
        size = self.batches * self.rows * self.pitch * self.source.dtype.bytes if self.grid[0] else 0
        return -(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES

    @property
    def traits(self) -> Traits:
        """The copy in the source's place: same shape, rows along K, address not known yet."""
        matrix = (self.pitch, 1) if self.k_last else (1, self.pitch)
        batch = self.rows * self.pitch if self.batches > 1 else 0
        strides = (batch, *matrix) if len(self.source.shape) == 3 else matrix
        return replace(self.source, strides=strides, alignment_bytes=MAX_ALIGNMENT_BYTES, address=None)

    @property
    def form(self) -> PaddedForm:
        """How it is read: along the axis with the smaller stride, in words where every one lies whole and aligned."""
        size = self.source.dtype.bytes
        k_stride, row_stride = self._strides
        along_k = self.rows == 1 or (self.k > 1 and k_stride <= row_stride)
        extent, unit, other = (self.k, k_stride, row_stride) if along_k else (self.rows, row_stride, k_stride)
        others = [other, self._batch_stride if self.batches > 1 else 0]
        words = size < WORD_BYTES and unit == 1 and extent * size % WORD_BYTES == 0
        words = words and all(stride * size % WORD_BYTES == 0 for stride in others)
        words = words and self.source.alignment_bytes % WORD_BYTES == 0
        return PaddedForm(size, along_k, words, self.rounded)

    @property
    def _strides(self) -> tuple[int, int]:
        """Along K, and along M or N."""
        last, before = self.source.strides[-1], self.source.strides[-2]
        return (last, before) if self.k_last else (before, last)

    @property
    def _batch_stride(self) -> int:
        return self.source.strides[0] if len(self.source.shape) == 3 else 0

    @property
    def tiles(self) -> tuple[int, int]:
        """Tiles along M or N, and along K."""
        tile = self.form.tile
        return -(-self.rows // tile), -(-self.k // tile)

    @property
    def grid(self) -> tuple[int, int, int]:
        """CTAs; none where there is nothing to copy."""
        tiles = self.tiles
        return (tiles[0] * tiles[1] * self.batches, 1, 1)

    def launcher(self, target: TargetSm) -> Launcher:
        """The kernel for the form, compiled where no cache has it, and loaded once for all who use it."""
        return launcher_of(self.form, target)

    def numbers(self, source: int, target: int) -> list[int]:
        """The kernel's parameters for the addresses of the operand and of its copy."""
        size = self.source.dtype.bytes
        k_stride, row_stride = self._strides
        strides = [row_stride * size, k_stride * size, self._batch_stride * size, self.pitch * size]
        return [source, target, self.rows, self.k, self.batches, *strides, *self.tiles]

    @property
    def moved_bytes(self) -> int:
        """Bytes that go through memory: those read and those written."""
        size = self.source.dtype.bytes
        return self.batches * self.rows * (self.k + self.pitch) * size

    def estimate_us(self, cc: int) -> float:
        """Predicted microseconds."""
        if not self.grid[0]:
            return 0.0
        share = _SHARE_WORDS if self.form.words or self.source.dtype.bytes == WORD_BYTES else _SHARE_ELEMENTS
        return _LAUNCH_US + self.moved_bytes / (share * rates_of(cc).terabytes_per_second * 1e6)


@functools.lru_cache(maxsize=64)
def launcher_of(form: PaddedForm, target: TargetSm) -> Launcher:
    """The copy kernel of a form."""

    def make() -> Any:
        from epifuse_cutedsl.kernels.padded.kernel import PaddedCopyKernel  # noqa: PLC0415 - imports the DSL

        return PaddedCopyKernel(form)

    return Launcher(image_of(("padded", form), CODES, target, make))
