# SPDX-License-Identifier: Apache-2.0
"""Which operator was fastest when it was measured, on disk: by plan, operands, bucket of shapes, device and what was
offered, so that a record never outlives the kernels that it speaks of.

One small JSON file a record, written so that processes cannot clash. A file that is damaged or of another format counts
as absent; nothing here is ever fatal to a caller.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from epifuse import settings
from epifuse.arguments import GemmArguments
from epifuse.records import dataclass
from epifuse.runtime.tensors import Traits

FORMAT = 1
SUFFIX = ".winner"
MOST_RECORDS = 4096
_FINENESS = 8
"""Buckets in one doubling of an extent."""


@dataclass(frozen=True, slots=True)
class Winner:
    """The fastest operator's name, its microseconds, and all that were measured by name."""

    operator_name: str
    us: float
    measured: dict[str, float]


def bucket(extent: int) -> int:
    """The smallest extent of its bucket: eight buckets a doubling, and small extents by themselves."""
    width = 1 << max(0, extent.bit_length() - 1 - _FINENESS.bit_length() + 1)
    return extent // width * width


def device_of(args: Any) -> str | None:
    """The GPU that holds the operands, as records name it; None on the CPU, or for fake tensors of a GPU not here."""
    device = args.A.device if isinstance(args, GemmArguments) else None
    if device is None or device.type != "cuda" or not torch.cuda.is_available():
        return None
    return _device_name(device.index or 0) if (device.index or 0) < torch.cuda.device_count() else None


@functools.lru_cache(maxsize=64)
def _device_name(index: int) -> str:
    properties = torch.cuda.get_device_properties(index)
    return f"{properties.name}, {properties.multi_processor_count} SMs"


def recall(args: Any, names: Sequence[str]) -> Winner | None:
    """What is remembered for these arguments, where operators of these ``names`` are offered."""
    device = device_of(args)
    if device is None or len(names) < 2:
        return None
    key = _key(args, device, names)
    try:
        found = json.loads(_path(key).read_text(encoding="utf-8"))
        if found["format"] != FORMAT or found["key"] != key or found["winner"] not in names:
            return None
        measured = {str(name): float(us) for name, us in found["measured"].items()}
        return Winner(found["winner"], float(found["us"]), measured)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def remember(args: GemmArguments, names: Sequence[str], winner: Winner) -> Path | None:
    """Keep a winner; its file, or None where the disk did not take it or the operands are on no GPU."""
    device = device_of(args)
    if device is None:
        return None
    key = _key(args, device, names)
    path = _path(key)
    content = {"format": FORMAT, "key": key, "winner": winner.operator_name, "us": winner.us}
    content["measured"] = winner.measured
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".part")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(content, file, indent=1)
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
    except OSError:
        return None
    _shrink(path.parent)
    return path


def clear() -> int:
    """Forget every record; how many there were."""
    count = 0
    with contextlib.suppress(OSError):
        for path in _folder().glob(f"*{SUFFIX}"):
            with contextlib.suppress(OSError):
                path.unlink()
                count += 1
    return count


def _key(args: GemmArguments, device: str, names: Sequence[str]) -> dict[str, Any]:
    offered = hashlib.sha256("\n".join(sorted(names)).encode()).hexdigest()
    operands = {name: _described(getattr(args, name).traits) for name in ("A", "B", "out")}
    shape = [bucket(extent) for extent in args.problem_size]
    return {"plan": args.plan.key, **operands, "shape": shape, "device": device, "offered": offered}


def _described(traits: Traits) -> str:
    """Dtype, and the axis of the last two that has stride 1."""
    unit = next((axis for axis in (-1, -2) if traits.strides[axis] == 1), 0)
    return f"{traits.dtype.name}, unit axis {unit}"


def _folder() -> Path:
    return settings.CACHE_DIR.read() / "tune"


def _path(key: dict[str, Any]) -> Path:
    digest = hashlib.sha256(json.dumps([FORMAT, key], sort_keys=True).encode()).hexdigest()
    return _folder() / f"{digest}{SUFFIX}"


def _shrink(folder: Path) -> None:
    with contextlib.suppress(OSError):
        files = sorted(folder.glob(f"*{SUFFIX}"), key=lambda path: path.stat().st_mtime)
        for path in files[: max(0, len(files) - MOST_RECORDS)]:
            path.unlink()
