# SPDX-License-Identifier: Apache-2.0
"""One launch, from the driver's side: its shape as C code wrote it, the kernel's own limits, its parameters."""

from __future__ import annotations

import ctypes
import math
from typing import TYPE_CHECKING, NamedTuple

from . import queries
from .errors import HostCallError
from .hostabi import read_pointer

if TYPE_CHECKING:
    from .chips import Chip
    from .device import EmulatedDevice
    from .machine import LaunchReport
    from .syntax import Function, Module

Extent = tuple[int, int, int]

_INVALID_VALUE, _INVALID_CONFIGURATION, _NO_IMAGE = 1, 9, 209
_PORTABLE_CLUSTER = 8
_DEFAULT_SHARED_BYTES = 48 * 1024
_ATTRIBUTE_BYTES, _ATTRIBUTE_VALUE_AT = 72, 8
_CLUSTER_DIMENSION, _COOPERATIVE, _LAUNCH_COMPLETION_EVENT = 4, 2, 12
# Attributes that change when or where a kernel runs, never what it computes: policies, priorities, domains, carve-outs.
_WITHOUT_EFFECT = {0, 1, 3, 5, 6, 8, 9, 10, 11, 14}


class LaunchShape(NamedTuple):
    """What host code asks for; `cluster` is None where it does not say."""

    grid: Extent
    block: Extent
    cluster: Extent | None
    dynamic_shared_bytes: int


class KernelFacts(NamedTuple):
    """What a kernel's directives say."""

    max_threads: int
    required_block: Extent | None
    required_cluster: Extent | None
    static_shared_bytes: int


class Limits(NamedTuple):
    """What host code allowed the kernel beforehand, by function attributes."""

    max_dynamic_shared: int | None
    non_portable_cluster: bool


class _LaunchConfig(ctypes.Structure):
    _fields_ = [
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("dynamic_shared_bytes", ctypes.c_size_t),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("attribute_count", ctypes.c_uint32),
    ]


def read_config(address: int) -> LaunchShape:
    """Read a cudaLaunchConfig_t; an attribute that would change results and is not emulated is refused."""
    config = _LaunchConfig.from_address(address)
    cluster: Extent | None = None
    for index in range(config.attribute_count):
        attribute = config.attributes + index * _ATTRIBUTE_BYTES
        number = ctypes.c_uint32.from_address(attribute).value
        value = (ctypes.c_uint32 * 3).from_address(attribute + _ATTRIBUTE_VALUE_AT)
        if number == _CLUSTER_DIMENSION:
            cluster = (value[0], value[1], value[2])
        elif number == _COOPERATIVE and value[0]:
            raise HostCallError(
                801, "a cooperative launch is not emulated", advice="launch without a grid-wide barrier"
            )
        elif number not in _WITHOUT_EFFECT | {_COOPERATIVE}:
            raise HostCallError(801, f"launch attribute {number} is not emulated")
    grid, block = tuple(config.grid), tuple(config.block)
    return LaunchShape(
        (grid[0], grid[1], grid[2]), (block[0], block[1], block[2]), cluster, config.dynamic_shared_bytes
    )


def kernel_facts(entry: Function) -> KernelFacts:
    """Read what an entry's directives and declarations say."""
    largest = entry.required_threads or entry.max_threads or (1024, 1, 1)
    return KernelFacts(math.prod(largest), entry.required_threads, entry.required_cluster, entry.static_shared_bytes)


def run(
    device: EmulatedDevice,
    module: Module,
    name: str,
    shape: LaunchShape,
    parameters: list[bytes],
    limits: Limits | None = None,
) -> LaunchReport:
    """Run one kernel to its end, after every check that the real driver makes; its report is added to the device's.

    Without `limits` host code is taken to have asked for all the shared memory and cluster size that the chip has.
    """
    chip = device.chip
    if not queries.runs_image_for(chip, module.target):
        raise HostCallError(
            _NO_IMAGE,
            f"the kernel was compiled for {module.target} and the emulated device is a {chip.name}",
            where=name,
            advice="enter the device it was compiled for, or compile again",
        )
    limits = limits or Limits(chip.max_shared_per_block_optin, non_portable_cluster=True)
    cluster = checked_cluster(name, shape, kernel_facts(module.entries[name]), limits, chip)
    with device.lock:
        report: LaunchReport = device.executor.launch(
            module,
            name,
            grid=shape.grid,
            block=shape.block,
            cluster=cluster,
            dynamic_smem_bytes=shape.dynamic_shared_bytes,
            params=parameters,
            chip=chip,
            options=device.options,
            memory=device.memory,
        )
        device.reports.append(report)
    return report


def checked_cluster(name: str, shape: LaunchShape, facts: KernelFacts, limits: Limits, chip: Chip) -> Extent:
    """Refuse what the real driver refuses, and return the cluster that the launch runs with."""
    threads = math.prod(shape.block)
    if 0 in shape.grid or max(shape.grid[1:]) > 65535 or shape.grid[0] >= 2**31:
        raise _refusal(name, f"the grid {shape.grid} is empty or too large", "launch nothing where there is no work")
    if not 1 <= threads <= min(facts.max_threads, chip.max_threads_per_block) or shape.block[2] > 64:
        raise _refusal(name, f"a block of {shape.block} where the kernel allows {facts.max_threads} threads")
    if facts.required_block is not None and shape.block != facts.required_block:
        raise _refusal(name, f"a block of {shape.block} where the kernel requires {facts.required_block}")
    _check_shared(name, shape.dynamic_shared_bytes, facts.static_shared_bytes, limits, chip)
    cluster = shape.cluster or facts.required_cluster or (1, 1, 1)
    if facts.required_cluster is not None and cluster != facts.required_cluster:
        raise _refusal(name, f"a cluster of {cluster} where the kernel requires {facts.required_cluster}")
    _check_cluster(name, shape.grid, cluster, limits, chip)
    return cluster


def read_parameters(entry: Function, arguments: int) -> list[bytes]:
    """The bytes of each parameter: `arguments` is a C array of pointers to them."""
    found: list[bytes] = []
    for index, parameter in enumerate(entry.params):
        address = read_pointer(arguments + index * ctypes.sizeof(ctypes.c_void_p))
        found.append(ctypes.string_at(address, parameter.size_bytes))
    return found


def _check_shared(name: str, dynamic: int, static: int, limits: Limits, chip: Chip) -> None:
    allowed = limits.max_dynamic_shared
    if allowed is None:
        allowed = _DEFAULT_SHARED_BYTES - static
    if dynamic > allowed:
        advice = "set the function attribute for dynamic shared memory before the launch"
        raise _refusal(
            name, f"{dynamic} bytes of dynamic shared memory where {allowed} are allowed", advice, _INVALID_VALUE
        )
    if static + dynamic > chip.max_shared_per_block_optin:
        raise _refusal(
            name,
            f"{static} static and {dynamic} dynamic bytes of shared memory; the {chip.name} has "
            f"{chip.max_shared_per_block_optin} a block",
            "use fewer pipeline stages or a smaller tile",
            _INVALID_VALUE,
        )


def _check_cluster(name: str, grid: Extent, cluster: Extent, limits: Limits, chip: Chip) -> None:
    size = math.prod(cluster)
    if size > 1 and chip.max_cluster_size == 1:
        raise _refusal(name, f"a cluster of {cluster}; the {chip.name} has no clusters")
    largest = chip.max_cluster_size if limits.non_portable_cluster else min(_PORTABLE_CLUSTER, chip.max_cluster_size)
    if not 1 <= size <= largest:
        raise _refusal(name, f"a cluster of {cluster}; at most {largest} blocks are allowed")
    if any(blocks % width for blocks, width in zip(grid, cluster, strict=True)):
        raise _refusal(name, f"the grid {grid} is not a multiple of the cluster {cluster}", "round the grid up")


def _refusal(name: str, what: str, advice: str = "", code: int = _INVALID_CONFIGURATION) -> HostCallError:
    return HostCallError(code, what, where=f"launch of {name}", advice=advice or "compare the launch with the kernel")
