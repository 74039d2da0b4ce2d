# SPDX-License-Identifier: Apache-2.0
"""A functional GPU for PTX on the CPU: parses a module and executes its kernels, strictly; knows nothing of epifuse."""

from .device import EmulatedDevice, active, current, device
from .errors import EmulatorError, HostCallError, NoDeviceError, TensorMapError

__all__ = [
    "EmulatedDevice",
    "EmulatorError",
    "HostCallError",
    "NoDeviceError",
    "TensorMapError",
    "active",
    "current",
    "device",
]
