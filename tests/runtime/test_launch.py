# SPDX-License-Identifier: Apache-2.0
"""What a launch hands to the driver: a pointer to each parameter's bytes."""

import struct

import pytest

from epifuse.runtime.launch import offsets


@pytest.mark.parametrize(
    ("codes", "values"),
    [
        ((), ()),
        (("i",), (7,)),
        (("i", "q", "B", "f", "d", "H"), (1, 2**40, 3, 0.5, -2.25, 9)),
        (("128s", "128s", "i", "q"), (b"a" * 128, b"b" * 128, -5, 2**50)),
        (("B", "128s", "q"), (1, b"c" * 128, -1)),
    ],
)
def test_every_value_is_found_at_its_offset(codes, values):
    packed = struct.pack("@" + "".join(codes), *values)
    found = [struct.unpack_from("@" + code, packed, at)[0] for code, at in zip(codes, offsets(codes), strict=True)]
    assert found == list(values)
