# SPDX-License-Identifier: Apache-2.0
"""Tensor maps: the 128 bytes that tensor copies read (PTX ISA, "Tensors", "tensormap object").

The hardware's layout is not public; these fields were found by observation: they are what CuTe DSL's host code writes
itself, and what the driver of an H200 writes for ranks 1 to 5, bit for bit. Fields that neither was seen to write
(element strides, other swizzle atoms) are kept in the last 4 of the 64 bytes that matter.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from .reports import DescriptorError

_WORDS = struct.Struct("<8Q")
# Element codes of the hardware: bytes of an element, and the number of elements in one such unit.
_U4_PACKED, _U4_PADDED = 11, 12
_ELEMENT_BYTES = {0: 1, 1: 2, 2: 4, 3: 4, 4: 8, 5: 8, 6: 2, 7: 4, 8: 4, 9: 8, 10: 2, 13: 4, 14: 4}
_FLOATS = {6: "f16", 7: "f32", 8: "f32", 9: "f64", 10: "bf16", 13: "f32", 14: "f32"}
_INTEGERS = {0: "u8", 1: "u16", 2: "u32", 3: "s32", 4: "u64", 5: "s64"}
# The API's numbers (u8 u16 u32 s32 u64 s64 f16 f32 f64 bf16 f32-flush tf32 tf32-flush u4 u4-padded) as hardware codes.
_FROM_API = {
    0: 0,
    1: 1,
    2: 2,
    3: 3,
    4: 4,
    5: 5,
    6: 6,
    7: 7,
    8: 9,
    9: 10,
    10: 8,
    11: 13,
    12: 14,
    13: _U4_PACKED,
    14: _U4_PADDED,
}


class Request(Protocol):
    """A map as it is asked for, in the CUDA API's numbers, innermost dimension first."""

    @property
    def data_type(self) -> int: ...  # noqa: D102
    @property
    def address(self) -> int: ...  # noqa: D102
    @property
    def sizes(self) -> tuple[int, ...]: ...  # noqa: D102
    @property
    def strides(self) -> tuple[int, ...]: ...  # noqa: D102
    @property
    def box(self) -> tuple[int, ...]: ...  # noqa: D102
    @property
    def element_strides(self) -> tuple[int, ...]: ...  # noqa: D102
    @property
    def interleave(self) -> int: ...  # noqa: D102
    @property
    def swizzle(self) -> int: ...  # noqa: D102
    @property
    def l2_promotion(self) -> int: ...  # noqa: D102
    @property
    def fill_nan(self) -> int: ...  # noqa: D102


@dataclass(frozen=True)
class TensorMap:
    """A decoded map, innermost dimension first.

    `strides` in bytes, the first being the element's size; `swizzle_bytes` 0, 32, 64 or 128; `type` as PTX names it.
    """

    address: int
    type: str
    element_bytes: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    element_strides: tuple[int, ...]
    swizzle_bytes: int
    swizzle_atom: int
    interleave: int
    fill_nan: bool

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.sizes)

    @property
    def box_bytes(self) -> int:
        """Bytes of one box in shared memory."""
        total = self.element_bytes
        for size in self.box:
            total *= size
        return total


def encode(request: Request) -> bytes:
    """The 128 bytes of a map."""
    rank = len(request.sizes)
    strides = [stride >> 4 for stride in request.strides] + [0] * (5 - rank)
    sizes = [size - 1 for size in request.sizes] + [0] * (5 - rank)
    box = [size - 1 for size in request.box] + [0] * (5 - rank)
    steps = [step - 1 for step in request.element_strides] + [0] * (5 - rank)
    swizzle, atom = (3, request.swizzle - 3) if request.swizzle > 3 else (request.swizzle, 0)
    words = [0] * 8
    words[0] = request.address
    words[1] = (rank - 1) << 4 | _FROM_API[request.data_type] << 7 | request.interleave << 11 | swizzle << 13
    words[1] |= request.fill_nan << 15 | request.l2_promotion << 17 | strides[0] << 32
    words[2] = strides[1] | strides[2] << 32
    words[3] = strides[3]
    words[4] = sizes[0] | sizes[1] << 32
    words[5] = sizes[2] | sizes[3] << 32
    words[6] = sizes[4] | box[0] << 56
    extra = atom << 1 | sum(step << 3 + 3 * index for index, step in enumerate(steps))
    words[7] = sum(size << 8 * index for index, size in enumerate(box[1:])) | extra << 32
    return _WORDS.pack(*words).ljust(128, b"\0")


@lru_cache(maxsize=1024)
def decode(data: bytes) -> TensorMap:
    """A map from its bytes; the first 64 matter. Raises DescriptorError for an element type that does not exist."""
    words = _WORDS.unpack(data[:64])
    rank = (words[1] >> 4 & 7) + 1
    code = words[1] >> 7 & 15
    if rank > 5 or code not in _ELEMENT_BYTES:
        raise DescriptorError(
            f"the tensor map has rank {rank} and element code {code}: not a map, or an element not executed"
        )
    low = 0xFFFFFFFF
    strides = (words[1] >> 32, words[2] & low, words[2] >> 32, words[3] & low)
    sizes = (words[4] & low, words[4] >> 32, words[5] & low, words[5] >> 32, words[6] & low)
    box = (words[6] >> 56, *(words[7] >> 8 * index & 0xFF for index in range(4)))
    extra = words[7] >> 32
    element = _ELEMENT_BYTES[code]
    swizzle = words[1] >> 13 & 3
    return TensorMap(
        address=words[0],
        type=_FLOATS.get(code) or _INTEGERS[code],
        element_bytes=element,
        sizes=tuple(size + 1 for size in sizes[:rank]),
        strides=(element, *(stride << 4 for stride in strides[: rank - 1])),
        box=tuple(size + 1 for size in box[:rank]),
        element_strides=tuple((extra >> 3 + 3 * index & 7) + 1 for index in range(rank)),
        swizzle_bytes=0 if not swizzle else 16 << swizzle,
        swizzle_atom=extra >> 1 & 3,
        interleave=words[1] >> 11 & 3,
        fill_nan=bool(words[1] >> 15 & 1),
    )


def clear() -> None:
    """Forget the decoded maps."""
    decode.cache_clear()
