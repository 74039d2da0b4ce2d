# SPDX-License-Identifier: Apache-2.0
"""From a kernel object to a kernel image, through three caches: this process, the disk, the compiler."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import epifuse
from epifuse.runtime.cache import KernelImage, default_cache
from epifuse.target import TargetSm

_IMAGES_KEPT = 1024
_PART_BYTES = 1 << 16
_TILE_ORDER = os.path.join(os.path.dirname(epifuse.__file__), "tile_order.py")
"""The one file of the core that kernels trace."""


class Kernel(Protocol):
    """What a kernel class offers to the compiler."""

    block: tuple[int, int, int]
    smem_bytes: int


class Images:
    """Kernel images of this process by key; safe in threads, bounded."""

    def __init__(self) -> None:
        self._images: OrderedDict[str, KernelImage] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: str) -> KernelImage | None:
        """The image under a key, or None."""
        with self._lock:
            return self._images.get(key)

    def put(self, key: str, image: KernelImage) -> None:
        """Keep an image."""
        with self._lock:
            self._images[key] = image
            if len(self._images) > _IMAGES_KEPT:
                self._images.popitem(last=False)

    def clear(self) -> None:
        """Forget all images (those on disk stay)."""
        with self._lock:
            self._images.clear()


IMAGES = Images()


def image_of(
    parts: tuple[Any, ...], codes: tuple[str, ...], target: TargetSm, make: Callable[[], Kernel]
) -> KernelImage:
    """The image for everything that ``parts`` says, compiled only where no cache has it.

    ``codes`` are the struct codes of the kernel's parameters. ``make`` builds the kernel object and is called only for
    the compiler. The compiler's lock is held while it works and at no other time.
    """
    key = hashlib.sha256(repr((parts, codes, str(target), versions())).encode()).hexdigest()
    image = IMAGES.get(key)
    if image is None:
        disk = default_cache()
        image = disk.get(key)
        if image is None:
            from epifuse_cutedsl import compat  # noqa: PLC0415 - as in _compile

            with compat.COMPILE_LOCK:
                image = IMAGES.get(key) or _compile(make(), codes, target)
                IMAGES.put(key, image)
            disk.put(key, image)
        IMAGES.put(key, image)
    return image


def _compile(kernel: Kernel, codes: tuple[str, ...], target: TargetSm) -> KernelImage:
    from epifuse_cutedsl import compat  # noqa: PLC0415 - a kernel that some cache has needs no compiler

    ptx, cubin = compat.compile_to_ptx_and_cubin(kernel, codes, str(target))
    name = entry_name(ptx)
    return KernelImage(
        name=name,
        target=str(target),
        parameters=codes,
        block=kernel.block,
        cluster=getattr(kernel, "cluster", (1, 1, 1)),
        dynamic_smem_bytes=kernel.smem_bytes,
        cubin=cubin,
        ptx=ptx.encode(),
    )


def entry_name(ptx: str) -> str:
    """The name of a module's one kernel."""
    names = re.findall(r"\.entry\s+([\w$]+)", ptx)
    assert len(names) == 1, names
    return str(names[0])


@functools.lru_cache(maxsize=1)
def versions() -> tuple[str, ...]:
    """What a compiled kernel depends on beside its key: the compiler's version, and our own sources' digest."""
    try:
        dsl = importlib.metadata.version("nvidia-cutlass-dsl")
    except importlib.metadata.PackageNotFoundError:
        dsl = "unknown"
    digest = hashlib.sha256()
    for path in [*sorted(_sources(os.path.dirname(__file__))), _TILE_ORDER]:
        handle = os.open(path, os.O_RDONLY)  # `open` takes half as long again: 2.2 ms for all, not 1.4
        try:
            while part := os.read(handle, _PART_BYTES):
                digest.update(part)
        finally:
            os.close(handle)
    return (dsl, digest.hexdigest())


def _sources(folder: str) -> Iterator[str]:
    """Python files below a folder; ``Path.rglob`` takes twice the time."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                yield from _sources(entry.path)
            elif entry.name.endswith(".py"):
                yield entry.path
