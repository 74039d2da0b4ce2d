# SPDX-License-Identifier: Apache-2.0
"""What a measurement was made on: device, clocks and versions."""

from __future__ import annotations

import contextlib
import importlib.metadata
import platform
import shutil
import subprocess
from pathlib import Path

import torch

import epifuse

PACKAGES = ("nvidia-cutlass-dsl", "quack-kernels", "nvidia-cutlass-operators", "triton")
_QUERY = "name,driver_version,clocks.sm,clocks.mem,clocks.max.sm,temperature.gpu,power.draw"


def cpu_model() -> str:
    """The processor's name as the system gives it."""
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return platform.processor() or platform.machine()


def versions() -> dict[str, str]:
    """Versions of epifuse, torch, Python and what is measured beside."""
    found = {"python": platform.python_version(), "torch": torch.__version__, "epifuse": epifuse.__version__}
    for package in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


def device(kind: str) -> dict[str, str]:
    """The device: its name, and on a GPU what nvidia-smi says of clocks, temperature and power at this moment."""
    if kind != "cuda":
        return {"device": cpu_model(), "threads": str(torch.get_num_threads())}
    properties = torch.cuda.get_device_properties(0)
    found = {
        "device": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": str(properties.multi_processor_count),
        "cuda": str(torch.version.cuda),
    }
    return found | clocks()


def clocks() -> dict[str, str]:
    """nvidia-smi's clocks in MHz, temperature and power now; empty where it cannot be asked."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return {}
    command = [program, f"--query-gpu={_QUERY}", "--format=csv,noheader", "--id=0"]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return {}
    values = [value.strip() for value in run.stdout.strip().split(",")]
    return dict(zip(_QUERY.split(","), values, strict=False))
