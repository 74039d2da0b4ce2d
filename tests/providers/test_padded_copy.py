# SPDX-License-Identifier: Apache-2.0
"""The copy to padded rows along K, run by itself: every form, edges, batches; nothing beside the copy is written."""

import pytest
import torch

pytest.importorskip("cutlass")

import epifuse as ops
from epifuse.runtime.tensors import traits_of
from epifuse_cutedsl.padded_copy import PaddedCopy

SHAPES = {  # shape, strides, first element
    "rows": ((130, 67), (67, 1), 1),
    "rows of words": ((130, 68), (68, 1), 4),
    "columns": ((130, 67), (1, 131), 3),
    "columns of words": ((132, 67), (1, 132), 4),
    "no unit stride": ((5, 7), (300, 3), 0),
    "one row": ((1, 300), (1, 1), 0),
    "one column": ((300, 1), (1, 1), 0),
    "one element": ((1, 1), (1, 1), 0),
    "tiles and one": ((129, 257), (259, 1), 1),
    "batches": ((3, 70, 33), (70 * 33, 33, 1), 1),
    "one matrix for all": ((3, 70, 33), (0, 33, 1), 1),
    "batches of columns": ((2, 64, 64), (4096, 1, 64), 0),
}
TYPES = {
    "int8": (torch.int8, torch.uint8),
    "bfloat16": (torch.bfloat16, torch.int16),
    "float32": (torch.float32, torch.int32),
}


@pytest.mark.parametrize("k_last", [True, False])
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("dtype", TYPES)
def test_rows_along_k_with_zeros_behind(dtype, name, k_last):
    shape, strides, first = SHAPES[name]
    kind, bits = TYPES[dtype]
    room = torch.randint(-100, 100, (1 << 16,), generator=torch.Generator().manual_seed(1)).to(kind)
    view = room.as_strided(shape, strides, first)
    copy = PaddedCopy(traits_of(view), k_last)
    memory = torch.full((copy.bytes,), 0xA5, dtype=torch.uint8)
    with ops.emulator.device("90a"):
        numbers = copy.numbers(view.data_ptr(), memory.data_ptr())
        copy.launcher(ops.TargetSm("90a")).emulated(copy.grid, numbers, [view, memory])
    used = copy.batches * copy.rows * copy.pitch
    rows = memory.view(bits)[:used].reshape(copy.batches, copy.rows, copy.pitch)
    matrices = (view if view.dim() == 3 else view[None])[: copy.batches].contiguous().view(bits)
    assert torch.equal(rows[..., : copy.k], matrices if k_last else matrices.mT)
    # Zeros up to a whole chunk of 16 bytes; what lies behind is not written.
    chunked = -(-copy.k * view.element_size() // 16) * 16
    assert not rows[..., copy.k : chunked // view.element_size()].any()
    size_bytes = used * view.element_size()
    assert (memory[:size_bytes].reshape(-1, copy.pitch * view.element_size())[:, chunked:] == 0xA5).all()
    assert (memory[size_bytes:] == 0xA5).all()
    placed = torch.as_strided(memory.view(kind), copy.traits.shape, copy.traits.strides)
    assert torch.equal(placed.contiguous().view(bits), view.contiguous().view(bits))


@pytest.mark.parametrize(
    ("shape", "strides", "along_k", "words"),
    [
        ((64, 64), (65, 1), True, False),
        ((64, 64), (66, 1), True, True),
        ((64, 63), (66, 1), True, False),
        ((64, 64), (1, 64), False, True),
        ((64, 64), (1, 65), False, False),
        ((64, 64), (200, 3), True, False),
        ((64, 64), (3, 200), False, False),
    ],
)
def test_forms(shape, strides, along_k, words):
    room = torch.empty(1 << 14, dtype=torch.bfloat16)
    form = PaddedCopy(traits_of(room.as_strided(shape, strides)), True).form
    assert (form.along_k, form.words) == (along_k, words)


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0, 4, 4)])
def test_nothing_is_copied_of_an_empty_operand(shape):
    copy = PaddedCopy(traits_of(torch.empty(shape, dtype=torch.int8)), True)
    assert copy.grid[0] == 0
    assert copy.bytes == 0
    assert copy.estimate_us(90) == 0.0
