# SPDX-License-Identifier: Apache-2.0
"""The driver's rules for tensor maps, each with a map that breaks it and one that just does not."""

import ctypes

import pytest

from epifuse.emulator import HostCallError, TensorMapError, tensor_map
from epifuse.emulator.driver import Driver
from epifuse.emulator.map_rules import MapRequest, check, violations

F16, F32, I32, PACKED_U4, PADDED_U4, PADDED_U6 = 6, 7, 3, 13, 14, 15
GOOD = MapRequest(F16, 0x1000, (100, 50, 3), (208, 10400), (64, 8, 1), (1, 1, 1), swizzle=3)


def test_a_legal_map_passes():
    check(GOOD, descriptor_address=0x40)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"data_type": 16}, "data type 16"),
        ({"swizzle": 7}, "swizzle 7"),
        ({"l2_promotion": 4}, "L2 promotion 4"),
        ({"interleave": 3}, "interleave 3"),
        ({"fill_nan": 2}, "fill 2"),
        ({"data_type": I32, "fill_nan": 1}, "not floating point"),
        ({"address": 0x1008}, "address 0x1008"),
        ({"address": 0}, "address 0x0"),
        ({"sizes": (100, 0, 3)}, "size 0 of dimension 1"),
        ({"sizes": (2**32 + 1, 50, 3)}, "of dimension 0"),
        ({"strides": (200, 10400)}, "stride 200 of dimension 1"),
        ({"strides": (208, 2**40)}, "of dimension 2"),
        ({"box": (64, 257, 1)}, "extent 257 of dimension 1"),
        ({"box": (64, 0, 1)}, "extent 0 of dimension 1"),
        ({"box": (4, 8, 1)}, "8 bytes wide"),
        ({"box": (72, 8, 1)}, "more than its 128-byte swizzle"),
        ({"element_strides": (1, 9, 1)}, "element stride 9"),
        ({"interleave": 2}, "without 32-byte swizzle"),
        ({"data_type": PADDED_U4}, "not a multiple of 128"),
        ({"data_type": PADDED_U6, "sizes": (128, 50, 3), "strides": (224, 11200)}, "not 128"),
        ({"data_type": PACKED_U4, "sizes": (99, 50, 3)}, "odd number 99"),
    ],
)
def test_each_broken_rule_is_named(changes, text):
    with pytest.raises(TensorMapError) as caught:
        check(GOOD._replace(**changes))
    assert text in str(caught.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"sizes": (2**32, 50, 3)},
        {"strides": (0, 2**40 - 16)},
        {"box": (64, 256, 1)},
        {"box": (128, 8, 1), "swizzle": 0},
        {"box": (8, 8, 1)},
        {"element_strides": (99, 8, 1)},  # the innermost one is ignored without interleave
        {"interleave": 2, "swizzle": 1, "strides": (224, 10400)},
        {"data_type": F32, "box": (32, 8, 1), "fill_nan": 1},
        {"data_type": PACKED_U4, "box": (256, 8, 1)},
        {"data_type": PADDED_U4, "sizes": (128, 50, 3), "strides": (224, 11200), "box": (128, 8, 1)},
    ],
)
def test_what_just_keeps_the_rules_passes(changes):
    assert violations(GOOD._replace(**changes)) == ()


def test_every_violation_is_listed():
    broken = violations(GOOD._replace(address=8, box=(64, 300, 1)))
    assert len(broken) == 2


def test_the_descriptor_itself_must_be_aligned():
    with pytest.raises(TensorMapError, match="descriptor lies at 0x48"):
        check(GOOD, descriptor_address=0x48)


class Encoded:
    """A call of the C function, with its arrays in memory as host code has them."""

    def __init__(self, request: MapRequest) -> None:
        self.driver = Driver()
        self._memory = (ctypes.c_uint8 * 256)()
        self.where = -(-ctypes.addressof(self._memory) // 64) * 64
        rank = len(request.sizes)
        arrays = [
            (ctypes.c_uint64 * rank)(*request.sizes),
            (ctypes.c_uint64 * max(rank - 1, 1))(*request.strides),
            (ctypes.c_uint32 * rank)(*request.box),
            (ctypes.c_uint32 * rank)(*request.element_strides),
        ]
        pointers = [ctypes.addressof(array) for array in arrays]
        modes = request.interleave, request.swizzle, request.l2_promotion, request.fill_nan
        encode = self.driver.c_function("cuTensorMapEncodeTiled")
        self.status = encode(self.where, request.data_type, rank, request.address, *pointers, *modes)

    @property
    def bytes(self) -> bytes:
        return ctypes.string_at(self.where, 128)


@pytest.mark.parametrize(
    "request_", [GOOD, GOOD._replace(sizes=(96,), strides=(), box=(64,), element_strides=(1,), address=0x2000)]
)
def test_host_code_gets_the_descriptor_that_the_machine_reads(request_):
    encoded = Encoded(request_)
    assert encoded.status == 0, encoded.driver.failures.take()
    decoded = tensor_map.decode(encoded.bytes)
    assert (decoded.address, decoded.sizes, decoded.box) == (request_.address, request_.sizes, request_.box)
    assert decoded.strides[1:] == request_.strides
    assert (decoded.type, decoded.swizzle_bytes) == ("f16", 128)


def test_an_illegal_map_leaves_the_descriptor_alone():
    encoded = Encoded(GOOD._replace(strides=(200, 10400)))
    assert encoded.status == 1
    assert isinstance(encoded.driver.failures.take(), TensorMapError)
    assert encoded.bytes == bytes(128)


def test_elements_that_the_machine_does_not_know_are_named():
    encoded = Encoded(GOOD._replace(data_type=PADDED_U6, sizes=(128, 50, 3), strides=(224, 11200), box=(128, 8, 1)))
    assert encoded.status == 801
    error = encoded.driver.failures.take()
    assert isinstance(error, HostCallError)
    assert "element type 15" in str(error)
