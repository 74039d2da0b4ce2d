# SPDX-License-Identifier: Apache-2.0
"""``CpuProvider``: the name under which the operators for CPU tensors register."""

from __future__ import annotations

from typing import ClassVar

from epifuse.provider import Provider


class CpuProvider(Provider):
    """Operators that run on the CPU with torch."""

    family_modules: ClassVar = {"epifuse_cpu.operator": None}
