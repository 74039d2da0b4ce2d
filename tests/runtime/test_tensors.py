# SPDX-License-Identifier: Apache-2.0
"""Traits, views of other frameworks' tensors, and the questions about shared memory."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from epifuse import dtypes
from epifuse.errors import DtypeError, OperandTypeError
from epifuse.runtime.tensors import as_number, as_torch, overlap, overlaps_itself, same_view, traits_of


def test_traits_of_a_view():
    buffer = torch.zeros(100, dtype=torch.float16)
    view = buffer[3 : 3 + 40].view(5, 8)[:, ::2]
    traits = traits_of(view)
    assert traits.shape == (5, 4)
    assert traits.strides == (8, 2)
    assert traits.dtype is dtypes.FLOAT16
    assert traits.device == "cpu"
    assert traits.address == buffer.data_ptr() + 6
    assert traits.alignment_bytes == 2
    assert traits.extent_bytes == (4 * 8 + 3 * 2 + 1) * 2


def test_traits_of_fake_and_meta_tensors_have_no_address():
    with FakeTensorMode():
        fake = torch.empty(4, 6, device="cuda", dtype=torch.bfloat16)
    traits = traits_of(fake)
    assert (traits.device, traits.address, traits.alignment_bytes) == ("cuda:0", None, 32)
    assert traits_of(torch.empty(3, device="meta")).address is None


def test_refuses_sparse_and_unknown_dtypes():
    with pytest.raises(OperandTypeError, match="layout"):
        traits_of(torch.zeros(3, 3).to_sparse())
    with pytest.raises(DtypeError, match="complex"):
        traits_of(torch.zeros(3, dtype=torch.complex64))


def test_numpy_shares_memory_even_when_read_only():
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    tensor = as_torch(array, "x")
    array[1, 2] = 99
    assert tensor[1, 2] == 99
    array.flags.writeable = False
    tensor = as_torch(array, "x")
    assert tensor.data_ptr() == array.ctypes.data
    with pytest.raises(OperandTypeError, match="read-only"):
        as_torch(array, "D", output=True)


def test_dlpack_objects_are_viewed():
    class Box:
        def __init__(self, inner):
            self.inner = inner

        def __dlpack__(self, **kwargs):
            return self.inner.__dlpack__(**kwargs)

        def __dlpack_device__(self):
            return self.inner.__dlpack_device__()

    inner = torch.arange(6.0).view(2, 3)
    view = as_torch(Box(inner), "x")
    assert view.data_ptr() == inner.data_ptr()
    assert torch.equal(view, inner)


@pytest.mark.parametrize("value", ["text", None, object(), [1.0], True])
def test_refuses_what_is_no_tensor(value):
    with pytest.raises(TypeError, match="x"):
        as_torch(value, "x")


def test_negative_numpy_strides_are_refused_with_advice():
    with pytest.raises(OperandTypeError, match="copy"):
        as_torch(np.arange(4.0)[::-1], "x")


@pytest.mark.parametrize(
    ("value", "number"),
    [(2, 2), (0.5, 0.5), (np.float32(0.5), 0.5), (np.int64(3), 3), (np.float64(1.5), 1.5), (True, None),
     (np.bool_(True), None), (1j, None), ("1", None), (None, None)],
)  # fmt: skip
def test_numbers(value, number):
    found = as_number(value)
    assert found == number
    assert type(found) is type(number)


def test_interleaved_columns_do_not_overlap():
    buffer = torch.zeros(6, 10)
    left, right = traits_of(buffer[:, :5]), traits_of(buffer[:, 5:])
    assert not overlap(left, right)
    assert overlap(left, traits_of(buffer[:, 4:6]))
    assert not overlap(traits_of(buffer[:, ::2]), traits_of(buffer[:, 1::2]))
    assert not overlap(left, traits_of(torch.zeros(6, 5)))


@pytest.mark.parametrize(
    ("shape", "strides", "expected"),
    [
        ((4, 5), (5, 1), False),
        ((4, 5), (1, 4), False),
        ((4, 5), (0, 1), True),
        ((1, 5), (0, 1), False),
        ((4, 5), (4, 1), True),
        ((2, 2), (2, 3), False),
        ((3, 3), (2, 3), False),
        ((4, 3), (3, 4), False),
        ((5, 4), (3, 4), True),
        ((0, 5), (0, 0), False),
        ((2, 3, 4), (12, 4, 1), False),
        ((2, 3, 4), (4, 4, 1), True),
    ],
)
def test_self_overlap(shape, strides, expected):
    assert overlaps_itself(traits_of(torch.zeros(100).as_strided(shape, strides))) is expected


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    st.tuples(st.integers(1, 4), st.integers(1, 4)), st.tuples(st.integers(0, 6), st.integers(0, 6)), st.integers(0, 9),
    st.tuples(st.integers(1, 4), st.integers(1, 4)), st.tuples(st.integers(0, 6), st.integers(0, 6)), st.integers(0, 9),
)  # fmt: skip
def test_overlap_against_enumeration(shape_a, strides_a, offset_a, shape_b, strides_b, offset_b):
    buffer = torch.zeros(100, dtype=torch.int16)

    def positions(shape, strides, offset):
        return [offset + sum(i * s for i, s in zip(index, strides, strict=True))
                for index in itertools.product(*map(range, shape))]  # fmt: skip

    a = traits_of(buffer.as_strided(shape_a, strides_a, offset_a))
    b = traits_of(buffer.as_strided(shape_b, strides_b, offset_b))
    in_a, in_b = positions(shape_a, strides_a, offset_a), positions(shape_b, strides_b, offset_b)
    assert overlap(a, b) is bool(set(in_a) & set(in_b))
    assert overlaps_itself(a) is (len(set(in_a)) < len(in_a))


def test_same_view_ignores_dims_of_one():
    x = torch.zeros(4, 6)
    assert same_view(traits_of(x), traits_of(x[None]))
    assert same_view(traits_of(x), traits_of(x.view(4, 6)))
    assert not same_view(traits_of(x), traits_of(x.view(torch.int32)))
    square = torch.zeros(4, 4)
    assert not same_view(traits_of(square), traits_of(square.t()))
