# SPDX-License-Identifier: Apache-2.0
"""The table of element types: one row each, and every other name (torch, numpy, CuTe DSL) derived from it."""

from __future__ import annotations

import enum
from dataclasses import field
from typing import Any

import torch

from epifuse.errors import DtypeError
from epifuse.records import dataclass


class DtypeKind(enum.Enum):
    """What the bits of an element mean."""

    FLOAT = "float"
    INTEGER = "integer"
    BOOL = "bool"


@dataclass(frozen=True, slots=True, eq=False)
class DType:
    """One element type. Rows are singletons; ``==`` also accepts a torch dtype, a CuTe DSL type or a name.

    ``digits`` is the significand's width in bits with the hidden one (float) or the value bits (integer);
    ``lowest`` and ``highest`` bound the finite values; ``saturates`` says that a store clamps to them.
    """

    name: str
    short: str
    bits: int
    kind: DtypeKind
    digits: int
    lowest: float
    highest: float
    saturates: bool
    cutlass_name: str
    torch: torch.dtype = field(repr=False)

    @property
    def bytes(self) -> int:
        """Bytes an element takes in memory."""
        return self.bits // 8

    @property
    def width(self) -> int:
        """Bits an element takes (the CuTe DSL's name for it)."""
        return self.bits

    @property
    def is_float(self) -> bool:
        """Whether the elements are floating-point numbers."""
        return self.kind is DtypeKind.FLOAT

    @property
    def is_integer(self) -> bool:
        """Whether the elements are integers (bool is not one)."""
        return self.kind is DtypeKind.INTEGER

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if other is None or isinstance(other, DType):
            return False
        return find(other) is self

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[object, ...]:
        return (of, (self.name,))


_F, _I, _B = DtypeKind.FLOAT, DtypeKind.INTEGER, DtypeKind.BOOL

TABLE: tuple[DType, ...] = (
    DType(
        "float64", "f64", 64, _F, 53, -1.7976931348623157e308, 1.7976931348623157e308, False, "Float64", torch.float64
    ),
    DType("float32", "f32", 32, _F, 24, -3.4028234663852886e38, 3.4028234663852886e38, False, "Float32", torch.float32),
    DType("float16", "f16", 16, _F, 11, -65504.0, 65504.0, False, "Float16", torch.float16),
    DType(
        "bfloat16", "bf16", 16, _F, 8, -3.3895313892515355e38, 3.3895313892515355e38, False, "BFloat16", torch.bfloat16
    ),
    DType("float8_e4m3fn", "e4m3", 8, _F, 4, -448.0, 448.0, True, "Float8E4M3FN", torch.float8_e4m3fn),
    DType("float8_e5m2", "e5m2", 8, _F, 3, -57344.0, 57344.0, True, "Float8E5M2", torch.float8_e5m2),
    DType("int8", "i8", 8, _I, 7, -128, 127, True, "Int8", torch.int8),
    DType("uint8", "u8", 8, _I, 8, 0, 255, True, "Uint8", torch.uint8),
    DType("int16", "i16", 16, _I, 15, -32768, 32767, True, "Int16", torch.int16),
    DType("int32", "i32", 32, _I, 31, -(2**31), 2**31 - 1, True, "Int32", torch.int32),
    DType("int64", "i64", 64, _I, 63, -(2**63), 2**63 - 1, True, "Int64", torch.int64),
    DType("bool", "b1", 8, _B, 1, 0, 1, False, "Boolean", torch.bool),
)

_BY_NAME: dict[str, DType] = {key: row for row in TABLE for key in (row.name, row.short, row.cutlass_name)}
_BY_TORCH: dict[torch.dtype, DType] = {row.torch: row for row in TABLE}

FLOAT64 = _BY_NAME["float64"]
FLOAT32 = _BY_NAME["float32"]
FLOAT16 = _BY_NAME["float16"]
BFLOAT16 = _BY_NAME["bfloat16"]
FLOAT8_E4M3FN = _BY_NAME["float8_e4m3fn"]
FLOAT8_E5M2 = _BY_NAME["float8_e5m2"]
INT8 = _BY_NAME["int8"]
UINT8 = _BY_NAME["uint8"]
INT16 = _BY_NAME["int16"]
INT32 = _BY_NAME["int32"]
INT64 = _BY_NAME["int64"]
BOOL = _BY_NAME["bool"]


def find(value: Any) -> DType | None:
    """The row for a torch dtype, numpy dtype, CuTe DSL numeric type, name or row; None where there is none."""
    if isinstance(value, DType):
        return value
    if isinstance(value, torch.dtype):
        return _BY_TORCH.get(value)
    if isinstance(value, str):
        return _BY_NAME.get(value.removeprefix("torch."))
    name = getattr(value, "name", None) if not isinstance(value, type) else value.__name__
    return _BY_NAME.get(name) if isinstance(name, str) else None


def of(value: Any) -> DType:
    """The row for ``value`` (see ``find``).

    Raises:
        DtypeError: (a TypeError) no row of the table matches.
    """
    row = find(value)
    if row is None:
        known = ", ".join(r.name for r in TABLE)
        raise DtypeError(f"Unknown dtype {value!r}.", advice=f"Known dtypes: {known}.")
    return row
