# SPDX-License-Identifier: Apache-2.0
"""Compiled kernels on disk: one file a key, checked before it is believed, written so that processes cannot clash.

A file is a line of JSON (format, lengths, sha256 of what follows), then the parts. A file that is damaged, truncated or
of another format is deleted and counts as absent; nothing here is ever fatal to a caller.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from epifuse import settings
from epifuse.records import NamedTuple

FORMAT = 1
SUFFIX = ".kernel"


class KernelImage(NamedTuple):
    """One compiled kernel, free of the compiler that made it.

    ``parameters`` are the struct codes of the entry's parameters in order: ``q`` and ``i`` integers of 64 and 32 bits,
    ``d`` and ``f`` floats, ``128s`` a tensor map. ``target`` is such as ``90a``; ``block`` and ``cluster`` count
    threads and CTAs in x, y, z.
    """

    name: str
    target: str
    parameters: tuple[str, ...]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int]
    dynamic_smem_bytes: int
    cubin: bytes
    ptx: bytes

    def to_bytes(self) -> bytes:
        """The image as the content of a file."""
        parts = (self.cubin, zlib.compress(self.ptx, 6))
        described = {k: v for k, v in self._asdict().items() if k not in ("cubin", "ptx")}
        body = b"".join(parts)
        header = {
            "format": FORMAT,
            "lengths": [len(p) for p in parts],
            "sha256": hashlib.sha256(json.dumps(described, sort_keys=True).encode() + body).hexdigest(),
            "kernel": described,
        }
        return json.dumps(header, sort_keys=True).encode() + b"\n" + body

    @classmethod
    def from_bytes(cls, content: bytes) -> KernelImage:
        """The image in a file's content.

        Raises:
            ValueError: the content is truncated, altered, or of another format.
        """
        line, separator, body = content.partition(b"\n")
        header = json.loads(line)
        if not separator or header.get("format") != FORMAT or sum(header["lengths"]) != len(body):
            raise ValueError("another format, or a truncated file")
        described = header["kernel"]
        digest = hashlib.sha256(json.dumps(described, sort_keys=True).encode() + body).hexdigest()
        if digest != header["sha256"]:
            raise ValueError("the checksum does not match")
        first = header["lengths"][0]
        for name in ("parameters", "block", "cluster"):
            described[name] = tuple(described[name])
        return cls(cubin=body[:first], ptx=zlib.decompress(body[first:]), **described)


class DiskCache:
    """Kernel images in a folder, bounded by ``limit_bytes``: the files used longest ago go first."""

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self.folder = folder
        self.limit_bytes = limit_bytes

    def path(self, key: str) -> Path:
        """The file of a key (64 hexadecimal digits)."""
        return self.folder / f"{key}{SUFFIX}"

    def get(self, key: str) -> KernelImage | None:
        """The image under a key; None where there is none that can be believed."""
        path = self.path(key)
        try:
            image = KernelImage.from_bytes(path.read_bytes())
        except OSError:
            return None
        except (ValueError, KeyError, TypeError, zlib.error):
            with contextlib.suppress(OSError):
                path.unlink()
            return None
        with contextlib.suppress(OSError):
            os.utime(path)
        return image

    def put(self, key: str, image: KernelImage) -> bool:
        """Keep an image; whether the disk took it (a full or read-only disk is no error)."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=self.folder, suffix=".part")
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(image.to_bytes())
                os.replace(temporary, self.path(key))
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(temporary)
                raise
        except OSError:
            return False
        self._shrink()
        return True

    def clear(self) -> int:
        """Delete every image; how many there were."""
        count = 0
        for _, _, path in self._files():
            with contextlib.suppress(OSError):
                path.unlink()
                count += 1
        return count

    def size_bytes(self) -> int:
        """Bytes that all images take."""
        return sum(size for _, size, _ in self._files())

    def _files(self) -> Iterator[tuple[float, int, Path]]:
        with contextlib.suppress(OSError):
            for path in self.folder.glob(f"*{SUFFIX}"):
                with contextlib.suppress(OSError):
                    stat = path.stat()
                    yield stat.st_mtime, stat.st_size, path

    def _shrink(self) -> None:
        files = sorted(self._files())
        total = sum(size for _, size, _ in files)
        for _, size, path in files[:-1]:
            if total <= self.limit_bytes:
                return
            with contextlib.suppress(OSError):
                path.unlink()
                total -= size


def default_cache() -> DiskCache:
    """The cache in the folder and of the size that the settings name."""
    return DiskCache(settings.CACHE_DIR.read(), settings.CACHE_LIMIT_MIB.read() << 20)
