# SPDX-License-Identifier: Apache-2.0
"""``epifuse doctor``: what this machine can do, what is missing for more, and the command that mends it."""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import platform
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from rich.text import Text

import epifuse
from epifuse import emulator, settings
from epifuse.commands import screen
from epifuse.errors import SettingError
from epifuse.fusion.vocabulary import stated_error, table
from epifuse.provider import available_providers
from epifuse.utils.device import target_of_device


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked for. ``mend``: what to do where it is missing; ``needed``: nothing runs without it."""

    what: str
    found: str
    present: bool
    mend: str = ""
    needed: bool = False


def findings() -> list[Finding]:
    """Everything that is looked for, in the order in which it is printed."""
    checks: tuple[Callable[[], Iterator[Finding]], ...] = (_python, _packages, _gpu, _tools, _emulator, _providers)
    return [finding for check in checks for finding in check()]


def _python() -> Iterator[Finding]:
    right = (3, 11) <= sys.version_info[:2] < (3, 13)
    found = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    yield Finding("Python", found, right, "install Python 3.11 or 3.12", needed=True)
    yield Finding("epifuse", epifuse.__version__, True)


def _packages() -> Iterator[Finding]:
    yield Finding("torch", f"{torch.__version__}, {torch.get_num_threads()} threads", True)
    for name, serves in (
        ("nvidia-cutlass-dsl", "compiles GPU kernels"),
        ("cuda-python", "launches GPU kernels"),
        ("apache-tvm-ffi", "launches GPU kernels at low cost"),
    ):
        try:
            found, present = f"{importlib.metadata.version(name)}, {serves}", True
        except importlib.metadata.PackageNotFoundError:
            found, present = f"missing; {serves}", False
        yield Finding(name, found, present, f"pip install {_requirement(name)}")


def _requirement(name: str) -> str:
    """The requirement on a package as this distribution states it, quoted for a shell."""
    try:
        stated = importlib.metadata.requires("epifuse") or []
    except importlib.metadata.PackageNotFoundError:
        stated = []
    return next((f"'{r}'" for r in stated if r.startswith(name)), name)


def _gpu() -> Iterator[Finding]:
    driver = _driver_version()
    yield Finding("CUDA driver", driver or "none (libcuda.so.1 is not found)", bool(driver), "install NVIDIA's driver")
    build = torch.version.cuda
    yield Finding(
        "torch's CUDA",
        build or "none (a CPU build)",
        build is not None,
        "pip install a CUDA build of torch (pytorch.org/get-started lists them)",
    )
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    for index in range(count):
        properties = torch.cuda.get_device_properties(index)
        target = target_of_device(torch.device("cuda", index))
        memory = properties.total_memory / 2**30
        yield Finding(f"GPU {index}", f"{properties.name}, sm_{target}, {memory:.0f} GiB", True)
    if not count:
        yield Finding("GPU", "none that torch can use", False, "nothing is needed for the CPU provider")


def _driver_version() -> str:
    """The CUDA version of the driver, e.g. ``13.0``; empty where there is no driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return ""
    version = ctypes.c_int(0)
    if driver.cuDriverGetVersion(ctypes.byref(version)) != 0:
        return ""
    return f"{version.value // 1000}.{version.value % 1000 // 10}"


def _tools() -> Iterator[Finding]:
    path = shutil.which("nvdisasm")
    found = f"{path or 'missing'}; shows the machine code of a kernel"
    yield Finding("nvdisasm", found, path is not None, "install the CUDA toolkit")


def _emulator() -> Iterator[Finding]:
    complete = importlib.util.find_spec("epifuse.emulator.machine") is not None
    active = emulator.active()
    enter = 'there; `with epifuse.emulator.device("90a"):` makes it the GPU'
    found = f"active as sm_{active.name}" if active is not None else enter
    yield Finding("emulated GPU", found if complete else "not in this version", complete)


def _providers() -> Iterator[Finding]:
    for name, provider in available_providers.items():
        families = ", ".join(family.__name__ for family in provider.families()) or "no operators in this version"
        yield Finding(f"provider {name}", families, bool(provider.families()))
    for name, failure in available_providers.failures.items():
        yield Finding(f"provider {name}", failure, False, "reinstall the distribution that brings it")


def run() -> int:
    """Print findings and settings; 1 where something that everything needs is missing, else 0."""
    console = screen.console()
    found = findings()
    made = screen.table("", "what", "found", "for more", title="This machine")
    for row in found:
        mark = Text("yes", style="green") if row.present else Text("no", style="red" if row.needed else "yellow")
        made.add_row(mark, row.what, Text(row.found), Text("" if row.present else row.mend))
    console.print(made)
    made = screen.table("setting", "value", "accepts", "what it does", title="Settings (environment variables)")
    bad = False
    for setting in settings.TABLE:
        try:
            value = Text("not set" if not setting.text else str(setting.read()))
        except SettingError:
            value, bad = Text(f"{setting.text} (not accepted)", style="red"), True
        made.add_row(setting.variable, value, Text(setting.accepts), Text(setting.summary))
    console.print(made)
    return int(bad or any(row.needed and not row.present for row in found))


def vocabulary() -> None:
    """Print every operation of the epilogue language."""
    columns = ("operation", "level", "what it computes", "error in float32", "also known as")
    made = screen.table(*columns, title="The vocabulary")
    for row in table.rows():
        names = ", ".join(row.torch_names)
        summary, error = Text(row.summary.replace("``", "")), Text(stated_error(row))
        made.add_row(Text(row.signature), row.level.value, summary, error, Text(names))
    screen.console().print(made)
