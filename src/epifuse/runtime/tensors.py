# SPDX-License-Identifier: Apache-2.0
"""Tensors of any framework as torch views, and the traits of them that discovery and kernels may depend on."""

from __future__ import annotations

import reprlib
from typing import Any, TypeAlias

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensor

from epifuse import dtypes
from epifuse.dtypes import DType
from epifuse.errors import DtypeError, OperandTypeError
from epifuse.records import dataclass

Number: TypeAlias = int | float

MAX_ALIGNMENT_BYTES = 32
"""Alignments are told apart up to this: the widest access to global memory (256 bits on SM100; tensor maps need 16)."""


@dataclass(frozen=True, slots=True)
class Traits:
    """What may be asked of a tensor without touching its data.

    ``strides`` count elements. ``address`` is None for a fake tensor. ``alignment_bytes`` is the largest power of two
    up to 32 that divides the address. ``device`` is a name such as ``cpu`` or ``cuda:0``. ``negated``: torch has only
    noted a negation (``x.conj().imag``), and the memory holds the values with the other sign.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: DType
    device: str
    alignment_bytes: int
    address: int | None
    negated: bool = False

    @property
    def key(self) -> tuple[Any, ...]:
        """The traits without the address: what a compiled kernel or a list of operators may be reused for."""
        return (self.shape, self.strides, self.dtype.name, self.device, self.alignment_bytes, self.negated)

    @property
    def numel(self) -> int:
        """Number of elements."""
        count = 1
        for extent in self.shape:
            count *= extent
        return count

    @property
    def extent_bytes(self) -> int:
        """Bytes from the first element to the end of the last one; 0 for an empty tensor."""
        if 0 in self.shape:
            return 0
        last = sum((size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True))
        return (last + 1) * self.dtype.bytes


_DEVICE_NAMES: dict[torch.device, str] = {}


def _device_name(device: torch.device) -> str:
    name = _DEVICE_NAMES.get(device)
    if name is None:
        name = _DEVICE_NAMES[device] = str(device)
    return name


def is_fake(tensor: torch.Tensor) -> bool:
    """Whether the tensor has no data (``FakeTensorMode``, or the meta device)."""
    if type(tensor) is torch.Tensor:
        return tensor.is_meta
    return isinstance(tensor, FakeTensor) or tensor.is_meta


def traits_of(tensor: torch.Tensor, name: str = "") -> Traits:
    """The traits of a torch tensor (real, fake or meta); ``name`` is the operand's, for messages.

    Raises:
        DtypeError: the dtype has no row in ``epifuse.dtypes``.
        OperandTypeError: the tensor is not strided (sparse, mkldnn, ...).
    """
    if tensor.layout is not torch.strided:
        raise OperandTypeError(
            f"{name or 'A tensor'} has layout {tensor.layout}.", advice="Pass a dense, strided tensor."
        )
    dtype = dtypes.find(tensor.dtype)
    if dtype is None:
        known = ", ".join(row.name for row in dtypes.TABLE)
        raise DtypeError(f"{name or 'A tensor'} has dtype {tensor.dtype}.", advice=f"Known dtypes: {known}.")
    shape, strides = tuple(tensor.shape), tensor.stride()
    if is_fake(tensor):
        offset = int(tensor.storage_offset()) * dtype.bytes
        alignment = (offset & -offset) or MAX_ALIGNMENT_BYTES
        return Traits(shape, strides, dtype, _device_name(tensor.device), min(alignment, MAX_ALIGNMENT_BYTES), None)
    address = tensor.data_ptr()
    alignment = (address & -address) or MAX_ALIGNMENT_BYTES
    alignment = min(alignment, MAX_ALIGNMENT_BYTES)
    return Traits(shape, strides, dtype, _device_name(tensor.device), alignment, address, tensor.is_neg())


class _Writeable:
    """An array interface over read-only memory, so that torch can view it without a copy and without a warning."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        interface = dict(array.__array_interface__)
        interface["data"] = (interface["data"][0], False)
        self.__array_interface__ = interface
        self.kept = array


def as_torch(value: Any, name: str, *, output: bool = False) -> torch.Tensor:
    """A torch tensor over the same memory: torch tensors as they are, numpy arrays, then anything with DLPack.

    Raises:
        OperandTypeError: (a TypeError) ``value`` is no tensor, has a layout torch cannot view, or is a read-only
            array where an output is expected.
    """
    if isinstance(value, torch.Tensor):
        return value
    if isinstance(value, np.ndarray):
        return _from_numpy(value, name, output)
    if hasattr(value, "__dlpack__") and hasattr(value, "__dlpack_device__"):
        try:
            return torch.utils.dlpack.from_dlpack(value)
        except Exception as error:
            raise OperandTypeError(
                f"{name}: torch cannot view this {type(value).__name__} through DLPack: {error}",
                advice="Pass a torch tensor or a numpy array over the same memory.",
            ) from error
    raise OperandTypeError(f"{name} is {reprlib.repr(value)} of type {type(value).__name__}, not a tensor.")


def _from_numpy(array: np.ndarray[Any, Any], name: str, output: bool) -> torch.Tensor:
    if not array.flags.writeable:
        if output:
            raise OperandTypeError(f"{name} is a read-only array and cannot be an output.", advice="Pass a copy.")
        array = np.asarray(_Writeable(array))
    try:
        return torch.from_numpy(array)
    except (TypeError, ValueError) as error:
        raise OperandTypeError(f"{name}: torch cannot view this numpy array: {error}", advice="Pass a copy.") from error


def as_number(value: Any) -> Number | None:
    """The Python number behind a Python or numpy scalar; None for anything else, bool and complex included."""
    if type(value) is float or type(value) is int:
        return value
    if isinstance(value, bool | np.bool_):
        return None
    if isinstance(value, np.integer):
        return int(value)
    if isinstance(value, np.floating | float):
        return float(value)
    return int(value) if isinstance(value, int) else None


def _bytes_view(traits: Traits) -> np.ndarray[Any, Any]:
    """An array of opaque items at the tensor's address, for questions about memory; its data is never read."""

    class _Interface:
        __array_interface__ = {
            "data": (traits.address, True),
            "shape": traits.shape,
            "strides": tuple(s * traits.dtype.bytes for s in traits.strides),
            "typestr": f"|V{traits.dtype.bytes}",
            "version": 3,
        }

    return np.asarray(_Interface())


_MAX_WORK = 1_000_000
"""Steps numpy's exact solver may take for one pair; strided views of rank 3 need a few hundred."""


def overlap(a: Traits, b: Traits) -> bool:
    """Whether two tensors share at least one byte (exactly; undecidable pairs count as sharing)."""
    if a.address is None or b.address is None or a.device != b.device:
        return False
    extent_a, extent_b = a.extent_bytes, b.extent_bytes
    if not extent_a or not extent_b or a.address + extent_a <= b.address or b.address + extent_b <= a.address:
        return False
    try:
        return np.shares_memory(_bytes_view(a), _bytes_view(b), max_work=_MAX_WORK)  # type: ignore[arg-type]  # the stub knows -1 and 0 only
    except np.exceptions.TooHardError:
        return True


def overlaps_itself(traits: Traits) -> bool:
    """Whether two positions of the tensor are the same memory (a stride of 0, or strides closer than extents)."""
    dims = sorted((abs(st), s) for s, st in zip(traits.shape, traits.strides, strict=True) if s > 1)
    if 0 in traits.shape:
        return False
    reach = 0
    nested = True
    for stride, size in dims:
        nested = nested and stride > reach
        reach += stride * (size - 1)
    if nested:
        return False
    # Strides that interleave (as_strided) may still be disjoint: count the distinct offsets.
    if traits.numel > 1 << 24:
        return True
    offsets = np.zeros(1, dtype=np.int64)
    for stride, size in dims:
        offsets = (offsets[:, None] + np.arange(size, dtype=np.int64) * stride).ravel()
    return bool(np.unique(offsets).size != offsets.size)


def same_view(a: Traits, b: Traits) -> bool:
    """Whether two tensors are the very same elements in the same order (size-1 dims and leading ones aside)."""

    def normal(t: Traits) -> list[tuple[int, int]]:
        return [(s, st) for s, st in zip(t.shape, t.strides, strict=True) if s != 1]

    return a.address == b.address and a.dtype is b.dtype and normal(a) == normal(b)
