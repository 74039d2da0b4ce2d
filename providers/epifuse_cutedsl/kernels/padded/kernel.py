# SPDX-License-Identifier: Apache-2.0
"""``PaddedCopyKernel``: one CTA a tile, through shared memory, so that reads and writes are both coalesced."""

from __future__ import annotations

from typing import Any

from cutlass import Int32, Int64, Uint8, Uint32, cute
from cutlass.cute import arch

from epifuse_cutedsl.configs.padded import CHUNK_BYTES, PITCH_BYTES, THREADS, TILE_BYTES, WORD_BYTES, PaddedForm
from epifuse_cutedsl.kernels.ptx import alu, gmem, shared

PARAMETERS: tuple[tuple[str, str], ...] = (
    ("source", "i64"),
    ("target", "i64"),
    ("rows", "i32"),
    ("k", "i32"),
    ("batches", "i32"),
    ("row_bytes", "i64"),
    ("k_bytes", "i64"),
    ("batch_bytes", "i64"),
    ("pitch_bytes", "i64"),
    ("tiles_rows", "i32"),
    ("tiles_k", "i32"),
)
"""Names and types, in order: addresses, extents, the source's strides in bytes, the copy's from row to row, tiles."""
_LOADS_AT_ONCE = 16
_CHUNKS = TILE_BYTES // CHUNK_BYTES


class PaddedCopyKernel:
    """The copy kernel for one form. Elements beyond K, up to the end of a chunk of 16 bytes, become zero."""

    def __init__(self, form: PaddedForm) -> None:
        self.form = form

    @property
    def smem_bytes(self) -> int:
        """Dynamic shared memory."""
        return self.form.tile * PITCH_BYTES

    @property
    def block(self) -> tuple[int, int, int]:
        """Threads of a CTA."""
        return (THREADS, 1, 1)

    @cute.jit
    def __call__(self, parameters: list) -> None:
        """Launch one CTA a tile. The numbers are those of ``PARAMETERS``."""
        tiles = parameters[9] * parameters[10] * parameters[4]
        self.kernel(parameters).launch(grid=[tiles, 1, 1], block=list(self.block), smem=self.smem_bytes)

    @cute.kernel
    def kernel(self, parameters: list) -> None:
        """The kernel's body."""
        source, target, rows, k, _, row_bytes, k_bytes, batch_bytes, pitch_bytes, tiles_rows, tiles_k = parameters
        tile = self.form.tile
        thread = arch.thread_idx()[0]
        base = arch.get_dyn_smem(Uint8, alignment=CHUNK_BYTES).toint()
        index = Uint32(arch.block_idx()[0])
        rest = index // Uint32(tiles_k)
        first_k = Int32(index - rest * Uint32(tiles_k)) * tile
        batch = rest // Uint32(tiles_rows)
        first_row = Int32(rest - batch * Uint32(tiles_rows)) * tile
        address = source + Int64(batch) * batch_bytes + Int64(first_row) * row_bytes + Int64(first_k) * k_bytes
        self._read(base, address, thread, (rows - first_row, k - first_k), (row_bytes, k_bytes))
        arch.sync_threads()
        row = Int64(batch) * rows + first_row
        address = target + row * pitch_bytes + Int64(first_k) * self.form.element_bytes
        self._write(base, address, thread, (rows - first_row, k - first_k), pitch_bytes)

    def _read(self, base: Any, address: Any, thread: Any, left: tuple[Any, Any], steps: tuple[Any, Any]) -> None:
        """The tile into shared memory. ``left``: rows and positions of K; ``steps``: bytes from one to the next."""
        form = self.form
        lanes = form.tile // form.group
        place, start = (thread % lanes) * form.group, thread // lanes
        # A word of neighbours along M or N is turned with those of the next positions of K: a square of elements.
        square = 1 if form.along_k else form.group
        jumps = THREADS // lanes * square
        pieces = [(jump, inner) for jump in range(0, form.tile, jumps) for inner in range(square)]
        for first in range(0, len(pieces), _LOADS_AT_ONCE):
            words = [
                self._load(address, place, start * square + jump + inner, left, steps)
                for jump, inner in pieces[first : first + _LOADS_AT_ONCE]
            ]
            for index in range(0, len(words), square):
                across = start * square + pieces[first + index][0]
                self._deposit(base, place, across, words[index : index + square])

    def _load(self, address: Any, along: Any, across: Any, left: tuple[Any, Any], steps: tuple[Any, Any]) -> Any:
        """One element, or a word of neighbours, or zero beyond the operand's end."""
        form = self.form
        row, k = (across, along) if form.along_k else (along, across)
        inside = (row < left[0]) & (k < left[1])
        place = address + Int64(row) * steps[0] + Int64(k) * steps[1]
        return gmem.ld_global_bits(place, WORD_BYTES if form.words else form.element_bytes, inside)

    def _deposit(self, base: Any, along: Any, across: Any, words: list[Any]) -> None:
        """Put what ``_load`` gave, one load or a square of them, into shared memory."""
        form = self.form
        size = form.element_bytes
        if form.along_k:
            address = base + _offset(across, along * size)
            if form.words or size == WORD_BYTES:
                shared.st_shared(address, words)
            else:
                shared.st_shared_bits(address, words[0], size)
            return
        for row, word in enumerate(_turned(words)):
            address = base + _offset(along + row, across * size)
            if form.words or size == WORD_BYTES:
                shared.st_shared(address, [word])
            else:
                shared.st_shared_bits(address, word, size)

    def _write(self, base: Any, address: Any, thread: Any, left: tuple[Any, Any], pitch_bytes: Any) -> None:
        """Rows of the copy, 16 bytes a thread."""
        size = self.form.element_bytes
        chunk, start = thread % _CHUNKS, thread // _CHUNKS
        byte = chunk * CHUNK_BYTES
        for first in range(0, self.form.tile, THREADS // _CHUNKS):
            row = start + first
            places = (base + _offset(row, byte + WORD_BYTES * i) for i in range(CHUNK_BYTES // WORD_BYTES))
            words = [shared.ld_shared(place)[0] for place in places]
            if self.form.rounded:
                words = [alu.cvt_rna_tf32(word) for word in words]
            inside = (row < left[0]) & (byte < left[1] * size)
            gmem.st_global_words(address + Int64(row) * pitch_bytes + byte, words, inside)


def _offset(row: Any, byte: Any) -> Any:
    """Where a byte of a row lies in shared memory.

    A pitch of 33 words, and words exclusive-ored with a quarter of the row: lanes that write words four rows apart, and
    lanes that read eight chunks of each of four rows, all meet different banks.
    """
    word = (byte >> 2) ^ ((row >> 2) & (TILE_BYTES // WORD_BYTES - 1))
    return row * PITCH_BYTES + word * WORD_BYTES + (byte & 3)


def _turned(words: list[Any]) -> list[Any]:
    """The transpose of a square of elements in as many words: word ``i`` of the result has element ``i`` of each."""
    if len(words) == 1:
        return words
    if len(words) == 2:
        return [alu.prmt(words[0], words[1], 0x5410), alu.prmt(words[0], words[1], 0x7632)]
    halves = [alu.prmt(words[i], words[i + 1], selector) for selector in (0x5140, 0x7362) for i in (0, 2)]
    return [alu.prmt(halves[i], halves[i + 1], selector) for i in (0, 2) for selector in (0x5410, 0x7632)]
