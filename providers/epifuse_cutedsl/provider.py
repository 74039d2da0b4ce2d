# SPDX-License-Identifier: Apache-2.0
"""``CuTeDSLProvider``: the name under which the GPU kernels register."""

from __future__ import annotations

from typing import Any

from epifuse.provider import Provider
from epifuse.status import Status
from epifuse.target import TargetSm


class CuTeDSLProvider(Provider):
    """Operators whose kernels are written in CuTe DSL."""

    @classmethod
    def _explain(cls, args: Any, target_sm: TargetSm | None) -> Status:
        return Status.fail(f"No GPU kernel takes {type(args).__name__}")
