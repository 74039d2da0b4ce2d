# SPDX-License-Identifier: Apache-2.0
"""``CuTeDSLProvider``: the name under which the GPU kernels register."""

from __future__ import annotations

from typing import Any, ClassVar

from epifuse.provider import Provider
from epifuse.status import Status
from epifuse.target import TargetSm

MADE_FOR = {"sm80": TargetSm("80"), "sm90": TargetSm("90a"), "sm100": TargetSm("100f")}
"""The target of each architecture's operators, which stand in ``operators_<architecture>``."""


class CuTeDSLProvider(Provider):
    """Operators whose kernels are written in CuTe DSL."""

    family_modules: ClassVar = {f"epifuse_cutedsl.operators_{name}": target for name, target in MADE_FOR.items()}

    @classmethod
    def _explain(cls, args: Any, target_sm: TargetSm | None) -> Status:
        return Status.fail(f"No GPU kernel takes {type(args).__name__}")
