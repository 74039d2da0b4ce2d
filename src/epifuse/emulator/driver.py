# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: PLC0415 - numpy stays away until something needs it
"""The CUDA calls that compiled host code makes, answered for the emulated device: images, kernels, launches."""

from __future__ import annotations

import ctypes
import dataclasses
import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from . import hostabi, launching, map_rules, queries
from .device import EmulatedDevice, current
from .errors import HostCallError, NoDeviceError
from .hostabi import Failures, write_int, write_pointer

if TYPE_CHECKING:
    from .syntax import Function, Module

# Handles are numbers that could not be addresses of anything, so that a mixed-up one is recognised.
_FIRST_HANDLE = 0x7E00_0000_0000
_INVALID_HANDLE, _NOT_FOUND, _NO_IMAGE, _NOT_SUPPORTED = 400, 500, 209, 801
_DYNAMIC_SHARED, _CARVEOUT, _NON_PORTABLE_CLUSTER = 8, 9, 14


@dataclasses.dataclass(eq=False)
class Library:
    """A device image that was loaded: its PTX, parsed once for each executor."""

    ptx: str
    parsed: dict[int, tuple[Any, Module]] = dataclasses.field(default_factory=dict)

    def module(self, device: EmulatedDevice) -> Module:
        """The parsed PTX, as the device's executor reads it."""
        executor = device.executor
        if id(executor) not in self.parsed:
            self.parsed[id(executor)] = (executor, executor.parse(self.ptx))
        return self.parsed[id(executor)][1]


@dataclasses.dataclass(eq=False)
class Kernel:
    """One kernel of a library, with the attributes that host code set on it."""

    library: Library
    name: str
    max_dynamic_shared: int | None = None
    non_portable_cluster: bool = False


class Driver:
    """The emulated driver as one piece of compiled host code sees it; it answers for whatever device is entered."""

    def __init__(self) -> None:
        self.failures = Failures()
        self._ptx: dict[str | None, str] = {}
        self._handles = itertools.count(_FIRST_HANDLE)
        self._libraries: dict[int, Library] = {}
        self._kernels: dict[int, Kernel] = {}
        self._functions: dict[str, Any] = {}

    def add_image(self, ptx: str, image_digest: str | None = None) -> None:
        """File the PTX that belongs to a device image; without a digest it stands for any image."""
        self._ptx[image_digest] = ptx

    def c_function(self, name: str) -> Any:
        """A C function for the CUDA call `name`; calling one that is not emulated is an error that names it."""
        if name not in self._functions:
            signature, method = _CALLS.get(name, ("->i", None))
            answer = _not_emulated(name) if method is None else getattr(self, method)
            self._functions[name] = hostabi.c_function(signature, answer, self.failures)
        return self._functions[name]

    # --- images and kernels -----------------------------------------------------------------------------------

    def library_load_data(self, out: int, code: int, *_: int | None) -> None:
        """cudaLibraryLoadData: the image's PTX is what will run."""
        image_digest = hostabi.digest(hostabi.image_bytes(code))
        ptx = self._ptx.get(image_digest, self._ptx.get(None))
        if ptx is None:
            raise HostCallError(
                _NO_IMAGE,
                f"no PTX is known for the device image {image_digest[:12]}",
                where="cudaLibraryLoadData",
                advice="compile while the device is entered, so that the PTX is kept with the kernel",
            )
        write_pointer(out, self._new_handle(self._libraries, Library(ptx)))

    def library_get_kernel(self, out: int, library: int, name: int) -> None:
        """cudaLibraryGetKernel."""
        wanted, owner = hostabi.read_text(name), self._library(library)
        self._entry(owner, wanted)
        write_pointer(out, self._new_handle(self._kernels, Kernel(owner, wanted)))

    def library_unload(self, library: int) -> None:
        """cudaLibraryUnload."""
        self._library(library)
        del self._libraries[library]

    def kernel_get_attribute(self, out: int, attribute: int, kernel: int, _device: int) -> None:
        """cuKernelGetAttribute: threads a block, static shared bytes; nothing else is known of PTX."""
        known = self._kernel(kernel)
        facts = launching.kernel_facts(self._entry(known.library, known.name))
        answers = {0: facts.max_threads, 1: facts.static_shared_bytes, 2: 0, 3: 0, 8: known.max_dynamic_shared or 0}
        if attribute not in answers:
            raise HostCallError(1, f"kernel attribute {attribute} is not known of PTX", where="cuKernelGetAttribute")
        write_int(out, answers[attribute])

    def set_kernel_attribute(self, kernel: int, attribute: int, value: int, *_: int) -> None:
        """cudaFuncSetAttribute and cudaKernelSetAttributeForDevice."""
        known, chip = self._kernel(kernel), _device_entered().chip
        if attribute == _DYNAMIC_SHARED:
            if not 0 <= value <= chip.max_shared_per_block_optin:
                raise HostCallError(
                    1,
                    f"{value} bytes of dynamic shared memory asked for, {chip.max_shared_per_block_optin} exist",
                    where=f"attributes of {known.name}",
                    advice="use fewer pipeline stages or a smaller tile",
                )
            known.max_dynamic_shared = value
        elif attribute == _NON_PORTABLE_CLUSTER:
            known.non_portable_cluster = bool(value)
        elif attribute != _CARVEOUT:
            raise HostCallError(
                1, f"function attribute {attribute} is not emulated", where=f"attributes of {known.name}"
            )

    def max_active_blocks(self, out: int, kernel: int, threads: int, dynamic_shared: int) -> None:
        """cudaOccupancyMaxActiveBlocksPerMultiprocessor."""
        known, device = self._kernel(kernel), _device_entered()
        facts = launching.kernel_facts(self._entry(known.library, known.name))
        shared = facts.static_shared_bytes + dynamic_shared
        write_int(out, queries.blocks_per_sm(device.chip, threads, shared))

    # --- launches ---------------------------------------------------------------------------------------------

    def launch_kernel_ex(self, config: int, kernel: int, arguments: int) -> None:
        """cudaLaunchKernelExC."""
        self._launch(kernel, launching.read_config(config), arguments)

    def launch_kernel(self, kernel: int, *rest: int) -> None:
        """cudaLaunchKernel, its two dim3 passed as six integers."""
        grid, block, (arguments, shared, _stream) = rest[:3], rest[3:6], rest[6:]
        shape = launching.LaunchShape((grid[0], grid[1], grid[2]), (block[0], block[1], block[2]), None, shared or 0)
        self._launch(kernel, shape, arguments)

    def _launch(self, handle: int, shape: launching.LaunchShape, arguments: int) -> None:
        kernel, device = self._kernel(handle), _device_entered()
        parameters = launching.read_parameters(self._entry(kernel.library, kernel.name), arguments)
        limits = launching.Limits(kernel.max_dynamic_shared, kernel.non_portable_cluster)
        launching.run(device, kernel.library.module(device), kernel.name, shape, parameters, limits)

    # --- the device -------------------------------------------------------------------------------------------

    def get_device(self, out: int) -> None:
        """cudaGetDevice: there is one."""
        _device_entered()
        write_int(out, 0)

    def get_device_count(self, out: int) -> None:
        """cudaGetDeviceCount."""
        _device_entered()
        write_int(out, 1)

    def set_device(self, ordinal: int) -> None:
        """cudaSetDevice."""
        if ordinal != 0:
            raise HostCallError(
                101, f"device {ordinal} asked for, and only device 0 is emulated", where="cudaSetDevice"
            )

    def device_get(self, out: int, ordinal: int) -> None:
        """cuDeviceGet."""
        self.set_device(ordinal)
        write_int(out, 0)

    def device_attribute(self, out: int, attribute: int, _device: int) -> None:
        """cudaDeviceGetAttribute."""
        write_int(out, queries.device_attribute(_device_entered().chip, attribute))

    def done(self, *_: int) -> None:
        """Whatever waits for the device: a launch has ended when its call returns."""

    def memory_set(self, address: int, value: int, size: int, *_: int) -> None:
        """cudaMemset and cudaMemsetAsync."""
        ctypes.memset(address, value, size)

    def memory_copy(self, to: int, source: int, size: int, *_: int) -> None:
        """cudaMemcpy and cudaMemcpyAsync: host memory is device memory."""
        ctypes.memmove(to, source, size)

    def tensor_map_encode_tiled(self, out: int, *rest: int) -> None:
        """cuTensorMapEncodeTiled: the driver's rules, then the descriptor that the hardware reads."""
        from . import tensor_map

        request = map_rules.read_request(*rest)
        map_rules.check(request, descriptor_address=out)
        try:
            descriptor = tensor_map.encode(request)
        except KeyError:
            raise HostCallError(
                _NOT_SUPPORTED,
                f"tensor maps of element type {request.data_type} are not emulated",
                where="cuTensorMapEncodeTiled",
            ) from None
        ctypes.memmove(out, descriptor, map_rules.DESCRIPTOR_BYTES)

    # --- handles ----------------------------------------------------------------------------------------------

    def _new_handle(self, table: dict[int, Any], value: Any) -> int:
        handle = next(self._handles)
        table[handle] = value
        return handle

    def _library(self, handle: int) -> Library:
        if handle not in self._libraries:
            raise HostCallError(_INVALID_HANDLE, f"{handle or 0:#x} is no library that is loaded")
        return self._libraries[handle]

    def _kernel(self, handle: int) -> Kernel:
        if handle not in self._kernels:
            raise HostCallError(_INVALID_HANDLE, f"{handle or 0:#x} is no kernel of a library that is loaded")
        return self._kernels[handle]

    def _entry(self, library: Library, name: str) -> Function:
        module = library.module(_device_entered())
        if name not in module.entries:
            raise HostCallError(_NOT_FOUND, f"no kernel {name!r} in the image; it has: {', '.join(module.entries)}")
        return module.entries[name]


def _device_entered() -> EmulatedDevice:
    device = current()
    if device is None:
        raise NoDeviceError(
            "a kernel of an emulated device was called while no device is emulated",
            advice="call it inside `with epifuse.emulator.device(...)`, or compile it again outside for a real one",
        )
    return device


def _not_emulated(name: str) -> Callable[..., int | None]:
    def refuse(*_: int) -> int | None:
        raise HostCallError(
            _NOT_SUPPORTED, f"{name} is not emulated", advice="add an answer to the emulated driver's table of calls"
        )

    return refuse


# Call: its C signature (hostabi's letters) and the method that answers it.
_CALLS: dict[str, tuple[str, str]] = {
    "cudaLibraryLoadData": ("ppppippi->i", "library_load_data"),
    "cudaLibraryGetKernel": ("ppp->i", "library_get_kernel"),
    "cudaLibraryUnload": ("p->i", "library_unload"),
    "cuKernelGetAttribute": ("pipi->i", "kernel_get_attribute"),
    "cudaFuncSetAttribute": ("pii->i", "set_kernel_attribute"),
    "cudaKernelSetAttributeForDevice": ("piii->i", "set_kernel_attribute"),
    "cudaOccupancyMaxActiveBlocksPerMultiprocessor": ("ppil->i", "max_active_blocks"),
    "cudaLaunchKernelEx": ("ppp->i", "launch_kernel_ex"),
    "cudaLaunchKernel": ("piiiiiiplp->i", "launch_kernel"),
    "cudaGetDevice": ("p->i", "get_device"),
    "cudaGetDeviceCount": ("p->i", "get_device_count"),
    "cudaSetDevice": ("i->i", "set_device"),
    "cuDeviceGet": ("pi->i", "device_get"),
    "cudaDeviceGetAttribute": ("pii->i", "device_attribute"),
    "cudaDeviceSynchronize": ("->i", "done"),
    "cudaStreamSynchronize": ("p->i", "done"),
    "cudaMemset": ("pil->i", "memory_set"),
    "cudaMemsetAsync": ("pilp->i", "memory_set"),
    "cudaMemcpy": ("ppli->i", "memory_copy"),
    "cudaMemcpyAsync": ("pplip->i", "memory_copy"),
    "cuTensorMapEncodeTiled": ("piipppppiiii->i", "tensor_map_encode_tiled"),
}
