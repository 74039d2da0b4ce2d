# SPDX-License-Identifier: Apache-2.0
"""Tensor maps: the driver's call as its reference gives it, and the emulator's bytes."""

import ctypes

import pytest
import torch

from epifuse.dtypes import of
from epifuse.emulator import tensor_map
from epifuse.emulator.errors import TensorMapError
from epifuse.runtime import tensormap
from epifuse.runtime.tensormap import TiledMap, encode

MAP = TiledMap(of("bfloat16"), 0x7000, (40, 70, 3), (80, 5600), (64, 128, 1))


def test_the_driver_is_asked_as_its_reference_says(monkeypatch):
    seen = {}

    def call(name, target, data_type, rank, address, sizes, strides, box, steps, *modes):
        assert target.value % 64 == 0
        ctypes.memset(target.value, 0x5A, 128)
        seen.update(name=name, data_type=data_type.value, rank=rank.value, address=address.value)
        seen.update(sizes=list(sizes), strides=list(strides), box=list(box), steps=list(steps))
        seen["types"] = [type(array)._type_ for array in (sizes, strides, box, steps)]
        seen["modes"] = [mode.value for mode in modes]

    monkeypatch.setattr(tensormap, "driver_call", call)
    assert encode(MAP, torch.device("cuda", 0)) == b"\x5a" * 128
    wide, narrow = ctypes.c_uint64, ctypes.c_uint32
    assert seen == {
        "name": "cuTensorMapEncodeTiled", "data_type": 9, "rank": 3, "address": 0x7000, "sizes": [40, 70, 3],
        "strides": [80, 5600], "box": [64, 128, 1], "steps": [1, 1, 1], "types": [wide, wide, narrow, narrow],
        # interleave none, 128-byte swizzle, 256 bytes of L2, zeros outside
        "modes": [0, 3, 3, 0],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "kind"), [("float16", "f16"), ("bfloat16", "bf16"), ("float32", "f32"), ("int8", "u8")]
)
def test_the_emulators_map_decodes_to_what_was_asked(name, kind):
    wide = 128 // of(name).bytes
    found = tensor_map.decode(encode(MAP._replace(dtype=of(name), box=(wide, 8, 1)), torch.device("cpu")))
    assert (found.type, found.sizes, found.strides[1:], found.box) == (kind, MAP.sizes, MAP.strides, (wide, 8, 1))
    assert (found.address, found.swizzle_bytes, found.fill_nan) == (0x7000, 128, False)


@pytest.mark.parametrize(
    ("field", "value", "word"),
    [("address", 0x7008, "address"), ("strides", (88, 5600), "stride 88"), ("box", (128, 8, 1), "128-byte swizzle")],
)
def test_the_drivers_rules_hold_in_the_emulator(field, value, word):
    with pytest.raises(TensorMapError, match=word):
        encode(MAP._replace(**{field: value}), torch.device("cpu"))
