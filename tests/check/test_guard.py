# SPDX-License-Identifier: Apache-2.0
"""Guard bands see every write outside, in every layout, and unwritten elements inside."""

import pytest
import torch

from epifuse.check import guard

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e4m3fn, torch.int8, torch.int32]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", guard.LAYOUTS)
@pytest.mark.parametrize("shape", [(5, 7), (1, 1), (3, 5, 7), (9,), (0, 7), (7, 0)])
def test_an_untouched_one_is_whole_and_unwritten(dtype, layout, shape):
    made = guard.blank(shape, dtype, layout)
    assert tuple(made.view.shape) == shape
    assert made.broken() is None
    assert made.unwritten().all()
    made.view.copy_(torch.ones(shape))
    assert made.broken() is None
    assert not made.unwritten().any()


@pytest.mark.parametrize("layout", guard.LAYOUTS)
def test_every_element_outside_is_guarded(layout):
    whole = guard.blank((3, 5), torch.float16, layout)
    inside = set((whole.memory.as_strided((3, 5), whole.view.stride(), 0).storage_offset()
                  + torch.tensor([[i * s + j * t for j in range(5)] for i in range(3)
                                  for s, t in [whole.view.stride()]])).flatten().tolist())  # fmt: skip
    first = whole.view.storage_offset()
    for place in range(whole.memory.numel()):
        made = guard.blank((3, 5), torch.float16, layout)
        made.memory[place] = 1.0
        assert made.broken() == (None if place - first in inside else place - first)


@pytest.mark.parametrize(
    ("layout", "strides", "aligned"),
    [("row", (70, 1), True), ("odd", (71, 1), False), ("strided", (146, 2), True), ("column", (1, 67), True)],
)
def test_layouts(layout, strides, aligned):
    made = guard.blank((67, 70), torch.float16, layout)
    assert made.view.stride() == strides
    assert (made.view.storage_offset() % 64 == 0) == aligned
    before, after = made.view.storage_offset(), made.memory.numel() - made.view.storage_offset()
    assert before >= guard.BAND
    assert after >= sum((e - 1) * s for e, s in zip((67, 70), strides, strict=True)) + 1 + guard.BAND


def test_an_operand_lies_in_nan():
    values = torch.arange(6.0).reshape(2, 3)
    made = guard.filled(values, torch.float32, "odd")
    assert torch.equal(made.view, values)
    assert made.memory.isnan().sum() == made.memory.numel() - 6
