# SPDX-License-Identifier: Apache-2.0
"""Full tensors of an epilogue that move by tensor copies: what of one lies in shared memory, and how.

A warp works on a piece of the tile, some rows by some columns. A tensor's part of the piece is one box or several
beside one another, each with rows of 16 to 128 bytes, swizzled over as many (PTX ISA, "Tensor swizzling modes"). A
box's rows lie along the axis of the epilogue's runs: where that is M, they are columns of the tensor.
"""

from __future__ import annotations

from collections.abc import Sequence

from epifuse.binding import Bound
from epifuse.fusion.plan import Route, Transport
from epifuse.records import NamedTuple
from epifuse.runtime.tensormap import ALIGNMENT_BYTES, TiledMap, has_data_type
from epifuse.runtime.tensors import Traits
from epifuse_cutedsl.fuse.params import strides_of

MOST_MAPS = 4
"""Tensors of one epilogue that a kernel has tensor maps for; more move by predicated accesses."""
PIECE_BUFFERS = 2
"""Buffers of a warp, by turns, where a piece's outputs take the place of its operands."""
CHUNK_BYTES = 16
WIDEST_ROW_BYTES = 128
ATOM_BYTES = 1024
"""Boxes begin on multiples of it, so that an exclusive-or within it never meets a box's own address."""
_LARGEST_STRIDE_BYTES = 1 << 40
_WHOLE = (True, True, True)


class Box(NamedTuple):
    """A tensor's part of one piece: ``rows`` rows of ``columns`` elements. ``batched``: it has a matrix a batch.

    ``parts``: copies of as many rows each, below one another, from places of their own. ``axis``: along "n" or "m".
    """

    element_bytes: int
    rows: int
    columns: int
    batched: bool
    parts: int = 1
    axis: str = "n"

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of one box, which is what the swizzle spans."""
        return min(self.columns * self.element_bytes, WIDEST_ROW_BYTES)

    @property
    def boxes(self) -> int:
        """Boxes beside one another."""
        return self.columns * self.element_bytes // self.row_bytes

    @property
    def copied_bytes(self) -> int:
        """What a copy of one part of all boxes moves; positions outside of the tensor count too."""
        return self.part_rows * self.columns * self.element_bytes

    @property
    def part_rows(self) -> int:
        """Rows of one copy."""
        return self.rows // self.parts

    @property
    def part_bytes(self) -> int:
        """From one part of a box to the next."""
        return self.part_rows * self.row_bytes

    @property
    def box_bytes(self) -> int:
        """From one box to the next."""
        return -(-self.rows * self.row_bytes // ATOM_BYTES) * ATOM_BYTES

    @property
    def bytes(self) -> int:
        """Shared memory of all boxes."""
        return self.boxes * self.box_bytes

    @property
    def box_columns(self) -> int:
        """Elements in a row of one box."""
        return self.row_bytes // self.element_bytes

    def narrowed(self, by: int) -> Box:
        """That of a piece with that fraction of the columns."""
        if self.axis == "m":
            return self._replace(rows=self.rows // by)
        return self._replace(columns=self.columns // by)

    def swizzled(self, offset: int) -> int:
        """Where the byte at ``offset`` of a box really lies: chunks of 16 bytes are exchanged within 8 rows.

        ``swizzled(a ^ b) == swizzled(a) ^ swizzled(b)``. A device integer gives one.
        """
        mask = self.row_bytes - CHUNK_BYTES
        return offset ^ ((offset >> 3) & mask) if mask else offset

    def displacement(self, row: int, column: int) -> tuple[int, int]:
        """(x, d): where an element lies, ``row`` and ``column`` behind one at (swizzled) address a: ``(a ^ x) + d``.

        Holds where neither ``row`` nor ``column`` has a bit in common with the first element's.
        """
        box, column = divmod(column, self.box_columns)
        offset = self.swizzled(row * self.row_bytes + column * self.element_bytes)
        turned = offset & (WIDEST_ROW_BYTES - CHUNK_BYTES)
        return turned, offset - turned + box * self.box_bytes


class Boxes(NamedTuple):
    """The boxes of an epilogue: by load that reaches memory or is a number, and by destination; None where a tensor
    moves otherwise."""

    loads: tuple[Box | None, ...] = ()
    outputs: tuple[Box | None, ...] = ()

    @property
    def load_bytes(self) -> int:
        """Shared memory of what is loaded for one piece."""
        return sum(box.bytes for box in self.loads if box is not None)

    @property
    def output_bytes(self) -> int:
        """Shared memory of what is stored of one piece."""
        return sum(box.bytes for box in self.outputs if box is not None)

    @property
    def piece_bytes(self) -> int:
        """Shared memory of one piece where outputs take the place of what was loaded."""
        return max(self.load_bytes, self.output_bytes)

    @property
    def copied_load_bytes(self) -> int:
        """What the copies of one part of a piece bring."""
        return sum(box.copied_bytes for box in self.loads if box is not None)

    def narrowed(self, by: int, parts: int = 1) -> Boxes:
        """Those of pieces with that fraction of the columns, copied in so many parts."""
        found = []
        for boxes in self:
            each = [box and box.narrowed(by)._replace(parts=parts) for box in boxes]
            found.append(tuple(box if box and box.row_bytes >= CHUNK_BYTES else None for box in each))
        return Boxes(*found)

    def numbered_outputs(self) -> list[tuple[int, int, Box]]:
        """(number of the tensor map, destination, box) of the outputs; their maps come first."""
        found = [(destination, box) for destination, box in enumerate(self.outputs) if box is not None]
        return [(number, destination, box) for number, (destination, box) in enumerate(found)]

    def numbered_loads(self) -> list[tuple[int, int, Box]]:
        """(number of the tensor map, load, box) of the loads."""
        first = len(self.numbered_outputs())
        found = [(load, box) for load, box in enumerate(self.loads) if box is not None]
        return [(first + number, load, box) for number, (load, box) in enumerate(found)]


def boxes_of(bound: Bound, rows: int, columns: int, axis: str = "n") -> Boxes:
    """The boxes of an epilogue for pieces of ``rows`` by ``columns`` accumulators, of tensors whose elements are
    neighbours along ``axis``."""
    plan, left, size = bound.plan, MOST_MAPS, (rows, columns) if axis == "n" else (columns, rows)
    outputs: list[Box | None] = [None] * len(bound.output_traits)
    for store in plan.stores:
        box = _box(bound.output_traits[store.destination], _WHOLE, size, axis, halved=store.halved)
        if left and box is not None and _may_be_copied(store.route):
            outputs[store.destination], left = box, left - 1
    loads: list[Box | None] = []
    for load in plan.loads:
        if load.operand < 0:
            continue
        traits, varies = bound.load_traits[load.operand], load.broadcast.value
        full = traits is not None and varies[1] and varies[2] and _may_be_copied(load.route)
        box = _box(traits, varies, size, axis, halved=load.halved) if full and left and traits is not None else None
        left -= box is not None
        loads.append(box)
    return Boxes(tuple(loads), tuple(outputs))


def _may_be_copied(route: Route | None) -> bool:
    """Whether the user leaves the choice to the kernel, or asks for tensor copies."""
    return route is None or route.via is Transport.TMA


def _box(traits: Traits, varies: Sequence[bool], extents: tuple[int, int], axis: str, *, halved: bool) -> Box | None:
    """The box of a full tensor, with so many rows and elements in each, or None where tensor copies cannot move it."""
    size, (rows, columns) = traits.dtype.bytes, extents
    box = Box(size, rows, columns // 2 if halved else columns, varies[0], axis=axis)
    if size > 4 or not has_data_type(traits.dtype) or box.row_bytes < CHUNK_BYTES:
        return None
    if traits.alignment_bytes < ALIGNMENT_BYTES:
        return None
    (batches, lines, length), strides = _turned(traits, varies, axis)
    if strides[2] != 1 and length > 1:
        return None
    for extent, stride in ((lines, strides[1]), (batches, strides[0])):
        if extent > 1 and not (stride and 0 < stride * size < _LARGEST_STRIDE_BYTES):
            return None
        if extent > 1 and stride * size % ALIGNMENT_BYTES:
            return None
    return box


def _turned(traits: Traits, varies: Sequence[bool], axis: str) -> tuple[list[int], list[int | None]]:
    """Extents and strides (elements) of the batches, across the axis and along it."""
    extents, strides = strides_of(traits, varies)
    order = (0, 1, 2) if axis == "n" else (0, 2, 1)
    return [extents[dim] for dim in order], [strides[dim] for dim in order]


def maps_of(bound: Bound, boxes: Boxes) -> list[TiledMap]:
    """The tensor maps of all boxes, in the order of their numbers."""
    stores = {store.destination: bound.output_traits[store.destination] for store in bound.plan.stores}
    loads = [load for load in bound.plan.loads if load.operand >= 0]
    found = []
    for _, destination, box in boxes.numbered_outputs():
        found.append(_map(bound.outputs[destination], stores[destination], _WHOLE, box))
    for _, index, box in boxes.numbered_loads():
        operand = loads[index].operand
        traits = bound.load_traits[operand]
        assert traits is not None
        found.append(_map(bound.loads[operand], traits, loads[index].broadcast.value, box))
    return found


def _map(tensor: object, traits: Traits, varies: Sequence[bool], box: Box) -> TiledMap:
    (batches, lines, length), strides = _turned(traits, varies, box.axis)
    size = traits.dtype.bytes
    row = (strides[1] or 0) * size if lines > 1 else -(-length * size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    batch = (strides[0] or 0) * size if batches > 1 else row * max(lines, 1)
    address: int = tensor.data_ptr()  # type: ignore[attr-defined]
    copy = (box.box_columns, box.part_rows, 1)
    return TiledMap(traits.dtype, address, (length, lines, batches), (row, batch), copy, box.row_bytes)
