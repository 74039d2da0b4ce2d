# SPDX-License-Identifier: Apache-2.0
"""Loads of an epilogue: scalars, vectors along and across the axis, full operands, each as wide as its traits allow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cutlass import Int32, Int64

from epifuse.fusion.plan import PlanLoad
from epifuse_cutedsl.fuse import staged as shared_boxes
from epifuse_cutedsl.fuse.boxes import Box
from epifuse_cutedsl.fuse.convert import per_word, unpack
from epifuse_cutedsl.fuse.fragment import Extents, Fragment
from epifuse_cutedsl.fuse.params import TensorTraits
from epifuse_cutedsl.fuse.values import Frame, Spread
from epifuse_cutedsl.kernels.ptx import gmem, shared
from epifuse_cutedsl.kernels.ptx.asm import emit


@dataclass(frozen=True)
class Reach:
    """A tensor in global memory as the device reaches it: address in bytes of its batch, strides in bytes or None."""

    traits: TensorTraits
    address: Any
    stride_m: Any
    stride_n: Any

    @classmethod
    def of(cls, traits: TensorTraits, numbers: Sequence[Any], batch: Any) -> Reach:
        """From the parameters of ``fuse.params`` (address, then strides in elements)."""
        size = traits.dtype.bytes
        address, *rest = numbers
        strides: dict[str, Any] = {}
        for dim, varies, strided in zip("lmn", traits.varies, traits.strided(), strict=True):
            if strided:
                strides[dim] = Int64(rest.pop(0)) * size
            elif varies:
                strides[dim] = Int64(size)
        if "l" in strides:
            address = address + Int64(batch) * strides["l"]
        return cls(traits, address, strides.get("m"), strides.get("n"))

    def at(self, m: Any, n: Any) -> Any:
        """The address of element (m, n); a direction along which the tensor does not vary takes no part."""
        address = self.address
        if self.stride_m is not None:
            address = address + Int64(m) * self.stride_m
        if self.stride_n is not None:
            address = address + Int64(n) * self.stride_n
        return address


class Addresses:
    """The elements of a fragment in a tensor: addresses, and constant displacements where the fragment knows them."""

    def __init__(self, reach: Reach, fragment: Fragment, halved: bool) -> None:
        self._reach, self._fragment, self._halved = reach, fragment, halved
        self._known: dict[tuple[int, int], Any] = {}

    def of(self, run: int, place: int) -> tuple[Any, int]:
        """The address of an element of a run, as an address and a number of bytes behind it."""
        fragment, reach = self._fragment, self._reach
        if fragment.origin is None:
            return reach.at(*coordinates(fragment, run, place, self._halved)), 0
        row, column = fragment.offsets[run]
        column = column // 2 if self._halved else column
        row, column = (row, column + place) if fragment.axis == "n" else (row + place, column)
        displacement, strided = 0, [0, 0]
        for axis, (name, stride, count) in enumerate((("m", reach.stride_m, row), ("n", reach.stride_n, column))):
            if stride is not None and reach.traits.unit == name:
                displacement += count * reach.traits.dtype.bytes
            elif stride is not None:
                strided[axis] = count
        return self._at(strided[0], strided[1]), displacement

    def _at(self, row: int, column: int) -> Any:
        """The address ``row`` and ``column`` strides behind the fragment's origin."""
        found = self._known.get((row, column))
        if found is None and (row, column) == (0, 0):
            assert self._fragment.origin is not None
            m, n = self._fragment.origin
            found = self._reach.at(m, n // 2 if self._halved else n)
        elif found is None:
            found = self._at(0, 0)
            for count, stride in ((row, self._reach.stride_m), (column, self._reach.stride_n)):
                found = found + Int64(count) * stride if count else found
        self._known[row, column] = found
        return found


def inside(fragment: Fragment, extents: Extents, run: int, place: int, spread: Spread) -> Any:
    """Whether the element of a run lies in the problem, as far as its spread needs to know."""
    conditions = []
    along, across = (extents.n, extents.m) if fragment.axis == "n" else (extents.m, extents.n)
    if spread.along:
        first, ahead = fragment.begins(run, fragment.axis)
        if spread.halved:
            along, first, ahead = along // 2, first // 2, ahead // 2
        conditions.append(along - first > ahead + place)
    if spread.across:
        first, ahead = fragment.begins(run, "m" if fragment.axis == "n" else "n")
        conditions.append(across - first > ahead)
    if not conditions:
        return emit("mov.b32 {$w0}, 1;", [Int32])[0] != 0  # inline PTX takes no predicate that the compiler can fold
    return conditions[0] if len(conditions) == 1 else conditions[0] & conditions[1]


def coordinates(fragment: Fragment, run: int, place: int, halved: bool) -> tuple[Any, Any]:
    """(m, n) of an element of a run, in a tensor of half the columns where ``halved``."""
    it = fragment.runs[run]
    if fragment.axis == "n":
        return it.m, (it.n // 2 if halved else it.n) + place
    return it.m + place, it.n


class MemoryLoad:
    """One tensor operand: issues its accesses for a frame, and later turns what came into scalars.

    With a ``box``, the kernel brings it to shared memory, and ``read`` takes the place of ``issue``.
    """

    def __init__(
        self, load: PlanLoad, number: int, reach: Reach, axis: str, steps_along: bool, box: Box | None = None
    ) -> None:
        self.load = load
        self.number = number
        self.reach = reach
        self.box = box
        self.axis = axis
        self.steps_along = steps_along
        self.spread = Spread.of(load.broadcast, axis, load.halved and load.broadcast.n)

    @property
    def once(self) -> bool:
        """Whether the value is the same at every step of a tile."""
        return not (self.spread.along if self.steps_along else self.spread.across)

    def width(self, fragment: Fragment) -> int:
        """Elements of one access."""
        length = fragment.length // 2 if self.spread.halved else fragment.length
        if self.box is not None:
            return shared_boxes.width_of(self.box, length)
        return min(self.reach.traits.elements(self.axis), length) if self.spread.along else 1

    def issue(self, frame: Frame, extents: Extents | None) -> list[Any]:
        """The words of every access, in the layout's order; without ``extents`` all of them lie inside."""
        fragment = frame.fragment
        width = self.width(fragment)
        addresses = Addresses(self.reach, fragment, self.spread.halved)
        words: list[Any] = []
        for run, place in frame.layout(self.spread).representatives:
            if place % width == 0:
                predicate = None if extents is None else inside(fragment, extents, run, place, self.spread)
                words += load_elements(*addresses.of(run, place), self.reach.traits.dtype.bytes, width, predicate)
        return words

    def zeros(self, frame: Frame) -> list[Any]:
        """As many words as ``issue`` gives, of the same types."""
        width, size_bytes = self.width(frame.fragment), self.reach.traits.dtype.bytes
        accesses = len(frame.layout(self.spread).representatives) // width
        each = [Int64(0)] * width if size_bytes == 8 else [Int32(0)] * max(1, width * size_bytes // 4)
        return each * accesses

    def read(self, frame: Frame, staged: shared_boxes.Staged) -> list[Any]:
        """The words of every access to the operand's boxes in shared memory, in the layout's order."""
        fragment, box, halved = frame.fragment, self.box, self.spread.halved
        assert box is not None
        words: list[Any] = []
        matrices = staged.matrices(box, staged.loads[self.number], halved)
        if matrices is not None:
            start, fours = matrices
            for _, turned, displacement in fours:
                words += shared.ldmatrix(start ^ turned if turned else start, displacement)
            return words
        start = staged.start(box, staged.loads[self.number], halved)
        size_bytes = self.width(fragment) * box.element_bytes
        for _, _, turned, displacement in staged.places(box, fragment, halved):
            words += shared_boxes.read(start, turned, displacement, size_bytes)
        return words

    def scalars(self, frame: Frame, words: Sequence[Any]) -> list[Any]:
        """The scalars of ``issue``'s words."""
        width = self.width(frame.fragment)
        dtype = self.reach.traits.dtype
        each = max(1, width // per_word(dtype))
        accesses = len(frame.layout(self.spread).representatives) // width
        found: list[Any] = []
        for access in range(accesses):
            part = words[access * each : (access + 1) * each]
            found += unpack(part, dtype, width, self.load.compute_dtype)
        return found


def load_elements(address: Any, displacement: int, element_bytes: int, count: int, predicate: Any) -> list[Any]:
    """``count`` elements (together 1 to 16 bytes, a power of two), ``displacement`` bytes behind an address, as words;
    zeros where the predicate (None: there is none) is false."""
    size = element_bytes * count
    if element_bytes == 8:
        return [gmem.ld_global_bits(address, 8, predicate, displacement + 8 * i) for i in range(count)]
    if size >= 4:
        return list(gmem.ld_global_words(address, size // 4, predicate, displacement))
    return [gmem.ld_global_bits(address, size, predicate, displacement)]
