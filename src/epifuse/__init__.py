# SPDX-License-Identifier: Apache-2.0
"""epifuse: a GEMM's epilogue written as a plain Python function, fused into the kernel that computes the GEMM."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from epifuse import emulator, fusion, metadata, utils, workspace
from epifuse.arguments import (
    DenseTensor,
    EpilogueArguments,
    GemmArguments,
    Load,
    Operand,
    PerformanceControls,
    RuntimeArguments,
    Store,
)
from epifuse.discovery import explain, get_operators
from epifuse.fusion.plan import EpiloguePlan, Transport
from epifuse.metadata import OperatorMetadata
from epifuse.operator import Operator
from epifuse.provider import Provider, available_providers, register_provider
from epifuse.runtime import artifact
from epifuse.runtime.artifact import CompiledArtifact
from epifuse.status import Status
from epifuse.target import ArchPortability, TargetSm

if TYPE_CHECKING:
    from epifuse_cutedsl import CuTeDSLProvider

__version__ = "0.1.0"

__all__ = [
    "ArchPortability",
    "CompiledArtifact",
    "CuTeDSLProvider",
    "DenseTensor",
    "EpilogueArguments",
    "EpiloguePlan",
    "GemmArguments",
    "Load",
    "Operand",
    "Operator",
    "OperatorMetadata",
    "PerformanceControls",
    "Provider",
    "RuntimeArguments",
    "Status",
    "Store",
    "TargetSm",
    "Transport",
    "artifact",
    "available_providers",
    "emulator",
    "explain",
    "fusion",
    "get_operators",
    "metadata",
    "register_provider",
    "utils",
    "workspace",
]


_LEFT_OUT = {
    "GroupedGemmArguments": "there is no grouped GEMM: pass GemmArguments with a batch, (L, M, K), where the problems "
    "have one shape, else one GemmArguments for each"
}
"""Names of the Operator API that are not here, and what to do instead."""


def __getattr__(name: str) -> object:
    """``CuTeDSLProvider`` is looked up when it is first asked for; the rest of the names are plain."""
    if name == "CuTeDSLProvider":
        return available_providers["cutedsl"]
    why = f": {_LEFT_OUT[name]}" if name in _LEFT_OUT else ""
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{why}", name=name, obj=sys.modules[__name__])
