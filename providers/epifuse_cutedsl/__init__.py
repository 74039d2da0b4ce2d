# SPDX-License-Identifier: Apache-2.0
"""The CuTe DSL provider: kernels for NVIDIA GPUs. Importing it imports neither cutlass nor cuda."""

from __future__ import annotations

from typing import Any

from epifuse.provider import Provider
from epifuse.status import Status
from epifuse.target import TargetSm


class CuTeDSLProvider(Provider):
    """Operators whose kernels are written in CuTe DSL."""

    @classmethod
    def _explain(cls, args: Any, target_sm: TargetSm | None) -> Status:
        if target_sm is None:
            return Status.fail("The operands are on the CPU and no GPU target was named (target_sm='90a')")
        return Status.fail(f"This version of epifuse has no GPU kernels yet, so none for sm_{target_sm}")


__all__ = ["CuTeDSLProvider"]
