# SPDX-License-Identifier: Apache-2.0
"""Stores of an epilogue: one rounding, then accesses as wide as the destination's traits allow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from epifuse.dtypes import DType
from epifuse.fusion.plan import PlanStore
from epifuse_cutedsl.fuse import staged as shared_boxes
from epifuse_cutedsl.fuse.boxes import Box
from epifuse_cutedsl.fuse.convert import pack
from epifuse_cutedsl.fuse.fragment import Extents
from epifuse_cutedsl.fuse.load import Addresses, Reach, inside
from epifuse_cutedsl.fuse.values import Frame, Lanes, Spread
from epifuse_cutedsl.kernels.ptx import gmem, shared


def store(plan: PlanStore, lanes: Lanes, compute: DType, reach: Reach, frame: Frame, extents: Extents) -> None:
    """Write a slot to its destination, wherever the fragment lies in the problem."""
    fragment = frame.fragment
    whole = Spread(True, True, plan.halved)
    dtype = reach.traits.dtype
    length = fragment.length // 2 if plan.halved else fragment.length
    width = min(reach.traits.elements(fragment.axis), length)
    addresses = Addresses(reach, fragment, plan.halved)
    for run in range(len(fragment.runs)):
        for place in range(0, length, width):
            values = [lanes.at(run, place + i) for i in range(width)]
            words = pack(values, dtype, compute)
            predicate = inside(fragment, extents, run, place, whole)
            store_elements(*addresses.of(run, place), dtype.bytes, width, words, predicate)


def stage(
    plan: PlanStore,
    lanes: Lanes,
    compute: DType,
    dtype: DType,
    frame: Frame,
    box: Box,
    staged: shared_boxes.Staged,
) -> None:
    """Write a slot to its destination's boxes in shared memory; positions outside of the problem too."""
    fragment = frame.fragment
    length = fragment.length // 2 if plan.halved else fragment.length
    width = shared_boxes.width_of(box, length)
    matrices = staged.matrices(box, staged.outputs[plan.destination], plan.halved)
    if matrices is not None:
        start, fours = matrices
        for run, turned, displacement in fours:
            runs = range(run, run + shared_boxes.MATRICES)
            words = [pack([lanes.at(each, i) for i in range(width)], dtype, compute)[0] for each in runs]
            shared.stmatrix(start ^ turned if turned else start, words, displacement)
        return
    start = staged.start(box, staged.outputs[plan.destination], plan.halved)
    for run, first, turned, displacement in staged.places(box, fragment, plan.halved):
        words = pack([lanes.at(run, first + i) for i in range(width)], dtype, compute)
        shared_boxes.write(start, turned, displacement, width * box.element_bytes, words)


def store_elements(
    address: Any, displacement: int, element_bytes: int, count: int, words: Sequence[Any], predicate: Any
) -> None:
    """Write ``count`` elements (together 1 to 16 bytes, a power of two), ``displacement`` bytes behind an address,
    where the predicate holds."""
    size = element_bytes * count
    if element_bytes == 8:
        for i, word in enumerate(words):
            gmem.st_global_bits(address, word, 8, predicate, displacement + 8 * i)
    elif size >= 4:
        gmem.st_global_words(address, words, predicate, displacement)
    else:
        gmem.st_global_bits(address, words[0], size, predicate, displacement)
