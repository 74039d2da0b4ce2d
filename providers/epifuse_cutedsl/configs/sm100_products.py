# SPDX-License-Identifier: Apache-2.0
"""What ``tcgen05.mma`` multiplies: dtypes of A, B and the accumulator, with their codes in instruction descriptors."""

from __future__ import annotations

from epifuse import dtypes
from epifuse.records import NamedTuple

Names = tuple[str, str, str]
"""Names of the dtypes of A, B and the accumulator."""

# PTX ISA, "Instruction descriptor" of tcgen05, the table of each kind: codes of A's and B's dtypes, and of the
# accumulators that the kind has.
_KINDS = (
    ("f16", {"float16": 0, "bfloat16": 1}, ("float32", "float16")),
    ("tf32", {"float32": 2}, ("float32",)),
    ("f8f6f4", {"float8_e4m3fn": 0, "float8_e5m2": 1}, ("float32", "float16")),
    ("i8", {"uint8": 0, "int8": 1}, ("int32",)),
)
_ACCUMULATORS = {"float16": 0, "float32": 1, "int32": 2}
_MIXED = ("f8f6f4", "i8")
"""Kinds that take A and B of different dtypes."""
_NOT_IN_FAMILY = ("i8",)
"""Kinds of sm_100a and sm_110a alone: ptxas refuses them for sm_100f and sm_103a."""


class Product(NamedTuple):
    """One row: the instruction's kind; codes of A, B and the accumulator; bytes of an element of A and of B."""

    names: Names
    kind: str
    codes: tuple[int, int, int]
    element_bytes: int

    @property
    def majors(self) -> tuple[str, ...]:
        """What A and B may be. 32-bit operands are K-major: MN-major ones want another swizzle."""
        return ("k",) if self.kind == "tf32" else ("k", "mn")

    @property
    def in_family(self) -> bool:
        """Whether all chips of the family have it."""
        return self.kind not in _NOT_IN_FAMILY


def _products() -> dict[Names, Product]:
    found = {}
    for kind, codes, accumulators in _KINDS:
        for a, b in ((a, b) for a in codes for b in codes if a == b or kind in _MIXED):
            for accumulator in accumulators:
                if accumulator == "float16" and "bfloat16" in (a, b):
                    continue
                names = (a, b, accumulator)
                numbers = (codes[a], codes[b], _ACCUMULATORS[accumulator])
                found[names] = Product(names, kind, numbers, dtypes.of(a).bytes)
    return found


PRODUCTS: dict[Names, Product] = _products()
"""Every product by its names."""
