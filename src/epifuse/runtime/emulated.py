# SPDX-License-Identifier: Apache-2.0
"""Launches kernel images on the emulated device: the same call as a loaded kernel's, with CPU tensors as its memory."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import torch

from epifuse.emulator import EmulatedDevice, launching
from epifuse.runtime.cache import KernelImage
from epifuse.runtime.tensors import traits_of


class EmulatedKernel:
    """A kernel image whose PTX is parsed; every call runs the grid to its end."""

    def __init__(self, image: KernelImage, device: EmulatedDevice) -> None:
        self.image = image
        self._module = device.executor.parse(image.ptx.decode())

    def __call__(
        self, device: EmulatedDevice, grid: Sequence[int], values: Sequence[Any], tensors: Sequence[torch.Tensor]
    ) -> None:
        """Run on an emulated device with one value a parameter; the kernel may touch ``tensors`` and nothing else.

        Raises:
            EmulatorError: whatever the kernel does wrong.
        """
        image = self.image
        params = [struct.pack("@" + code, value) for code, value in zip(image.parameters, values, strict=True)]
        opened = []
        try:
            for tensor in tensors:
                traits = traits_of(tensor)
                if traits.address is not None and traits.extent_bytes:
                    device.memory.register(traits.address, traits.extent_bytes)
                    opened.append(traits.address)
            x, y, z = grid
            shape = launching.LaunchShape((x, y, z), image.block, image.cluster, image.dynamic_smem_bytes)
            launching.run(device, self._module, image.name, shape, params)
        finally:
            for address in opened:
                device.memory.unregister(address)
