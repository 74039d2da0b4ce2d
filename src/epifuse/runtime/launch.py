# SPDX-License-Identifier: Apache-2.0
"""Launches kernel images through the CUDA driver (ctypes on its shared library): no compiler, no CUDA Python package.

Functions and structures as in the CUDA driver API: library management (``cuLibraryLoadData``, ``cuLibraryGetKernel``,
``cuKernelSetAttribute``) and execution control (``cuLaunchKernelEx``). A kernel of a library belongs to no context, so
one image serves every device of its architecture.
"""

from __future__ import annotations

import ctypes
import functools
import math
import struct
from collections.abc import Callable, Sequence
from typing import Any

import torch

from epifuse.errors import EpifuseError
from epifuse.runtime.cache import KernelImage

_MAX_DYNAMIC_SMEM = 8
"""CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES"""
_NON_PORTABLE_CLUSTER = 14
"""CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED"""
_PORTABLE_CLUSTER = 8
"""CTAs of a cluster that every chip with clusters takes."""
_CLUSTER_DIMENSION = 4
"""CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION"""
_PROGRAMMATIC_STREAM_SERIALIZATION = 6
"""CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION"""
_WAITS_FOR_GRIDS_BEFORE = b"griddepcontrol.wait"
"""What a kernel has in its PTX that may start before the one in front of it in the stream has ended."""
_INVALID_CONTEXT = 201
_STATIC_SMEM_LIMIT_BYTES = 48 << 10


class LaunchError(EpifuseError, RuntimeError):
    """The CUDA driver is missing or refused a call."""

    advice = "`python -m epifuse doctor` says what this machine can run."


class _Attribute(ctypes.Structure):
    _fields_ = (("id", ctypes.c_int), ("pad", ctypes.c_char * 4), ("value", ctypes.c_uint * 16))


class _Config(ctypes.Structure):
    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("dynamic_smem_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("attribute_count", ctypes.c_uint),
    )


@functools.lru_cache(maxsize=1)
def _driver() -> ctypes.CDLL:
    """The CUDA driver's library.

    Raises:
        LaunchError: this machine has none.
    """
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise LaunchError("There is no CUDA driver (libcuda.so.1) on this machine.") from error
    _check(library, library.cuInit(0), "cuInit")
    return library


def _check(driver: ctypes.CDLL, result: int, call: str) -> None:
    if result:
        name = ctypes.c_char_p()
        driver.cuGetErrorName(result, ctypes.byref(name))
        raise LaunchError(f"{call} failed: {(name.value or b'?').decode()} ({result}).")


def driver_call(name: str, *arguments: Any) -> None:
    """Call a function of the driver by its name, with ctypes arguments.

    Raises:
        LaunchError: this machine has no driver, or the call failed.
    """
    driver = _driver()
    _check(driver, getattr(driver, name)(*arguments), name)


def offsets(codes: Sequence[str]) -> tuple[int, ...]:
    """Where each value lies among values that ``struct`` packs with these codes, aligned as in C."""
    return tuple(
        struct.calcsize("@" + "".join(codes[: position + 1])) - struct.calcsize(code)
        for position, code in enumerate(codes)
    )


class LoadedKernel:
    """A kernel image that the driver has loaded. Safe in threads; loaded once, also for several devices."""

    def __init__(self, image: KernelImage) -> None:
        driver = _driver()
        self.image = image
        self._library = ctypes.c_void_p()
        self._kernel = ctypes.c_void_p()
        nothing = (None, None, 0, None, None, 0)
        _check(
            driver, driver.cuLibraryLoadData(ctypes.byref(self._library), image.cubin, *nothing), "cuLibraryLoadData"
        )
        found = driver.cuLibraryGetKernel(ctypes.byref(self._kernel), self._library, image.name.encode())
        _check(driver, found, "cuLibraryGetKernel")
        self._pack = struct.Struct("@" + "".join(image.parameters))
        self.offsets = offsets(image.parameters)
        self.programmatic = _WAITS_FOR_GRIDS_BEFORE in image.ptx
        self._prepared: set[int] = set()

    def prepare(self, device: int, stream: int, grid: Sequence[int], values: Sequence[Any]) -> PreparedLaunch:
        """A launch on a stream (its address) of a CUDA device; ``values`` has one number a parameter.

        Raises:
            LaunchError: the driver refuses the kernel on that device.
        """
        if device not in self._prepared:
            self._prepare(device)
        return PreparedLaunch(self, device, stream, grid, self._pack.pack(*values))

    @property
    def handle(self) -> int:
        """The driver's handle."""
        return self._kernel.value or 0

    def _prepare(self, device: int) -> None:
        wanted = []
        if self.image.dynamic_smem_bytes > _STATIC_SMEM_LIMIT_BYTES:
            wanted.append((_MAX_DYNAMIC_SMEM, self.image.dynamic_smem_bytes))
        if math.prod(self.image.cluster) > _PORTABLE_CLUSTER:
            wanted.append((_NON_PORTABLE_CLUSTER, 1))
        for attribute, value in wanted:
            driver = _driver()
            handle = ctypes.c_int()
            _check(driver, driver.cuDeviceGet(ctypes.byref(handle), device), "cuDeviceGet")
            result = driver.cuKernelSetAttribute(attribute, value, self._kernel, handle)
            _check(driver, result, "cuKernelSetAttribute")
        self._prepared.add(device)


class PreparedLaunch:
    """One launch on one stream, ready to be repeated from any thread: parameters, grid, attributes.

    ``again()`` is the bare call of the driver and gives its status (0: launched); ``run()`` raises instead.
    """

    def __init__(self, kernel: LoadedKernel, device: int, stream: int, grid: Sequence[int], parameters: bytes) -> None:
        image = kernel.image
        self._kernel = kernel  # keeps the library loaded
        self._device = device
        self._buffer = ctypes.create_string_buffer(parameters, max(len(parameters), 1))
        # A pointer to each parameter, not one packed buffer: where parameters lie is the driver's to know. On sm_90 the
        # first one lies at byte 48 where it is aligned to 64 bytes, as tensor maps are.
        first = ctypes.addressof(self._buffer)
        self._pointers = (ctypes.c_void_p * max(len(kernel.offsets), 1))(*(first + offset for offset in kernel.offsets))
        wanted: list[tuple[int, tuple[int, ...]]] = []
        if image.cluster != (1, 1, 1):
            wanted.append((_CLUSTER_DIMENSION, image.cluster))
        if kernel.programmatic:
            wanted.append((_PROGRAMMATIC_STREAM_SERIALIZATION, (1,)))
        self._attributes = (_Attribute * max(len(wanted), 1))()
        for attribute, (number, values) in zip(self._attributes, wanted, strict=False):
            attribute.id = number
            attribute.value[: len(values)] = values
        self._config = _Config()
        self._config.grid[:] = grid
        self._config.block[:] = image.block
        self._config.dynamic_smem_bytes = image.dynamic_smem_bytes
        self._config.stream = stream
        self._config.attributes = self._attributes
        self._config.attribute_count = len(wanted)
        launch = _driver().cuLaunchKernelEx
        launch.argtypes = (ctypes.c_void_p,) * 4
        config, pointers = ctypes.addressof(self._config), ctypes.addressof(self._pointers)
        self.again: Callable[[], int] = functools.partial(launch, config, kernel.handle, pointers, None)

    def run(self) -> None:
        """Launch.

        Raises:
            LaunchError: the driver refuses the launch.
        """
        result = self.again()
        if result == _INVALID_CONTEXT:
            # A thread that has used no CUDA yet has no current context; torch makes one.
            torch.cuda.set_device(self._device)
            torch.cuda.current_stream(self._device).query()
            result = self.again()
        if result:
            _check(_driver(), result, "cuLaunchKernelEx")


# torch.cuda.current_stream and current_device cost 1 us each; what stands behind them a tenth of it.
current_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None) or (
    lambda device: torch.cuda.current_stream(device).cuda_stream
)
"""The address of torch's current stream on a CUDA device, given by its index."""
current_device = getattr(torch._C, "_cuda_getDevice", None) or torch.cuda.current_device
"""The index of torch's current CUDA device."""


def stream_address(stream: Any, device: int) -> int:
    """The address of a stream: None is torch's current one; torch streams, CUstreams and plain integers are taken.

    Raises:
        LaunchError: the object is no stream.
    """
    if stream is None:
        return current_stream(device)
    for attribute in ("cuda_stream", "ptr"):
        address = getattr(stream, attribute, None)
        if isinstance(address, int):
            return address
    try:
        return int(stream)
    except (TypeError, ValueError) as error:
        raise LaunchError(f"{stream!r} is no stream.", advice="Pass a torch stream, a CUstream, or None.") from error
