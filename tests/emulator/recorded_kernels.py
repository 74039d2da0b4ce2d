# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - PTX instructions stay on their lines
"""Kernels that are more than a column, for a GPU and the emulator alike: tensor loads with every swizzle, wgmma."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import ptxlab
import wgmmalab

TARGET = "90a"


class Request(NamedTuple):
    """A tensor map in the API's numbers, innermost dimension first."""

    data_type: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    steps: tuple[int, ...]
    swizzle: int
    fill_nan: int


@dataclasses.dataclass(frozen=True)
class Kernel:
    """PTX, its arrays, which of them is the output, and the map over the array of index 1 where there is one.

    `text` takes the map as a parameter; `others` are the same kernel in other forms, tried where `text` fails: the form
    "global" takes the map's address in global memory instead. A `refused` kernel breaks a rule on purpose.
    """

    name: str
    text: str
    arrays: list[np.ndarray]
    output: int
    threads: int
    request: Request | None = None
    others: tuple[tuple[str, str], ...] = ()
    refused: bool = False


LOAD = """mov.u32 %r1, %tid.x; ld.param.u64 %d1, [p0]; mov.u32 %r2, smem; mov.b64 %d2, map0; cvta.param.u64 %d2, %d2;
setp.eq.u32 %p8, %r1, 0; @%p8 mbarrier.init.shared::cta.b64 [smem+{size}], 1; fence.mbarrier_init.release.cluster; bar.sync 0;
@!%p8 bra W; mbarrier.arrive.expect_tx.shared::cta.b64 _, [smem+{size}], {size};
cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [smem], [%d2, {at}], [smem+{size}];
W: mbarrier.try_wait.parity.shared::cta.b64 %p9, [smem+{size}], 0; @!%p9 bra W;
COPY: setp.ge.u32 %p7, %r1, {size}; @%p7 bra END; add.u32 %r3, %r2, %r1; ld.shared.u8 %r4, [%r3];
cvt.u64.u32 %d3, %r1; add.u64 %d3, %d1, %d3; st.global.u8 [%d3], %r4; add.u32 %r1, %r1, 32; bra COPY; END:"""


def _load(
    name: str, kind: str, api: int, shape: tuple[int, ...], box: tuple[int, ...], start: tuple[int, ...], **modes: int
) -> Kernel:
    dtype = np.dtype(kind)
    source = ptxlab.aligned(int(np.prod(shape)) * dtype.itemsize).view(dtype)
    source[:] = (np.arange(source.size) % 241 + 1).astype(dtype)
    strides, total = [], dtype.itemsize
    for extent in shape[:0:-1]:
        total *= extent
        strides.append(total)
    size = int(np.prod(box)) * dtype.itemsize
    request = Request(
        api,
        shape[::-1],
        tuple(strides),
        box[::-1],
        (1,) * len(shape),
        modes.get("swizzle", 0),
        modes.get("fill_nan", 0),
    )
    params, shared = ["p0", "p1", "map0"], size + 8
    body = LOAD.format(size=size, rank=len(shape), at="{" + ", ".join(str(x) for x in start[::-1]) + "}")
    forms = {
        "registers": _with_registers(body, start[::-1]),
        "at zero": LOAD.format(size=size, rank=len(shape), at="{" + ", ".join("0" for _ in start) + "}"),
    }
    taken = "ld.param.u64 %d2, [p2]; fence.proxy.tensormap::generic.acquire.gpu [%d2], 128;"
    elsewhere = body.replace("mov.b64 %d2, map0; cvta.param.u64 %d2, %d2;", taken)
    others = [(form, ptxlab.module_text(text, params, TARGET, 32, shared)) for form, text in forms.items()]
    others.append(("global", ptxlab.module_text(elsewhere, ["p0", "p1", "p2"], TARGET, 32, shared)))
    text = ptxlab.module_text(body, params, TARGET, 32, shared)
    arrays = [np.full(size, 0xA5, np.uint8), source]
    return Kernel(name, text, arrays, 0, 32, request, tuple(others), start[-1] * dtype.itemsize % 16 != 0)


def _with_registers(body: str, coordinates: tuple[int, ...]) -> str:
    """The same load with its coordinates in registers."""
    moves = " ".join(f"mov.b32 %r{20 + index}, {value};" for index, value in enumerate(coordinates))
    listed = "{" + ", ".join(str(value) for value in coordinates) + "}"
    named = "{" + ", ".join(f"%r{20 + index}" for index in range(len(coordinates))) + "}"
    return moves + "\n" + body.replace(listed, named)


def _wgmma(width: int) -> Kernel:
    rng = np.random.default_rng(width)
    a, b = rng.integers(-3, 4, (wgmmalab.M, 16)), rng.integers(-3, 4, (wgmmalab.N, 16))
    left, right = (wgmmalab.k_major(wgmmalab.encoded(x, "f16"), width) for x in (a, b))
    first = np.zeros(-(-len(left) // 1024) * 1024, np.uint8)
    first[: len(left)] = left
    image = np.concatenate((first, right))
    strides = (128, 256) if not width else (16, 8 * width)
    places = (wgmmalab.descriptor(0, *strides, width), wgmmalab.descriptor(len(first), *strides, width))
    names = "{" + ", ".join(f"%r{10 + i}" for i in range(wgmmalab.N // 2)) + "}"
    product = (
        "setp.ne.u32 %p1, 0, 0;\nwgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 "
        + names
        + ", %d5, %d6, %p1, 1, 1, 0, 0;"
    )
    text = wgmmalab.body(len(image), *places, product, wgmmalab.N // 2)
    out = np.zeros((128, wgmmalab.N // 2), np.uint32)
    return Kernel(
        f"wgmma.{width}", ptxlab.module_text(text, ["p0", "p1"], TARGET, 128, len(image)), [image, out], 1, 128
    )


def kernels() -> Iterator[Kernel]:
    """Every kernel. A copy's innermost coordinate times the element's size is a multiple of 16 bytes, or it is refused."""
    for code, width in enumerate((0, 32, 64, 128)):
        inner = (width or 64) // 2
        yield _load(f"swizzle.{width}", "f2", 6, (40, 96), (32, inner), (5, -8), swizzle=code)
        yield _wgmma(width)
    yield _load("rank.1", "f4", 7, (100,), (64,), (52,))
    yield _load("rank.3", "u1", 0, (5, 9, 64), (3, 4, 32), (3, -1, 48))
    yield _load("rank.4", "f4", 7, (3, 2, 5, 32), (2, 2, 3, 16), (-1, 1, 3, 20))
    yield _load("rank.5", "u2", 1, (2, 3, 3, 5, 32), (1, 2, 2, 3, 16), (1, 2, 0, -1, 24))
    yield _load("nan", "f4", 7, (16, 32), (8, 16), (12, -4), fill_nan=1)
    yield _load("outside", "f4", 7, (16, 32), (8, 16), (16, 64))
    for kind, api, inner in (("u1", 0, 17), ("u1", 0, 24), ("f2", 6, -3), ("f2", 6, 12), ("f4", 7, 5), ("f4", 7, 6)):
        yield _load(f"unaligned.{kind}.{inner}", kind, api, (16, 64), (8, 32), (2, inner))


def argument_list(kernel: Kernel, arrays: list[np.ndarray], encode: Any) -> list[Any]:
    """The kernel's arguments; `encode(address, request)` makes the map's bytes."""
    if kernel.request is None:
        return list(arrays)
    return [*arrays, encode(arrays[1].ctypes.data, kernel.request)]
