# SPDX-License-Identifier: Apache-2.0
"""The reductions: folds of positions into a destination that is written whole, never accumulated into.

``dim`` counts as torch counts it on the accumulator. Without it everything is folded here; an epilogue's destination
may ask for one result a batch. ``max`` and ``min`` propagate NaN and give no indices.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from epifuse.fusion.vocabulary.primitive import plain
from epifuse.fusion.vocabulary.table import (
    Accuracy,
    CostClass,
    Level,
    Operation,
    Parameter,
    Result,
    Role,
    register,
)

_PARAMETERS = (
    Parameter("x"),
    Parameter("dim", Role.DIMENSIONS, None),
    Parameter("keepdim", Role.FLAG, None, (None, False, True)),
)


def _axes(dim: Any) -> Any:
    return tuple(dim) if isinstance(dim, list) else dim


def _row(
    name: str,
    summary: str,
    torch_fold: Callable[..., Any],
    numpy_fold: Callable[..., Any],
    torch_names: tuple[str, ...],
    result: Result = Result.SAME,
    accuracy: Accuracy = Accuracy(ulp=0.0),  # noqa: B008 - a frozen record
) -> Operation:
    def on_torch(x: torch.Tensor, dim: Any = None, keepdim: bool | None = None) -> torch.Tensor:
        folded = tuple(range(x.ndim)) if dim is None else _axes(dim)
        value: torch.Tensor = torch_fold(x, folded, bool(keepdim))
        return value

    def on_numpy(x: Any, dim: Any = None, keepdim: bool | None = None) -> Any:
        return numpy_fold(x, axis=_axes(dim), keepdims=bool(keepdim))

    return register(
        Operation(
            name=name,
            level=Level.REDUCTION,
            parameters=_PARAMETERS,
            summary=summary,
            on_torch=on_torch,
            on_numpy=plain(on_numpy),
            torch_names=torch_names,
            result=result,
            accuracy=accuracy,
            cost=CostClass.ALU,
        )
    )


def _mean_torch(x: torch.Tensor, dim: Any, keepdim: bool) -> torch.Tensor:
    return torch.mean(x if x.is_floating_point() else x.to(torch.get_default_dtype()), dim, keepdim)


_SUM_NOTE = Accuracy(ulp=1.0, note="of the sum of magnitudes, times log2 of the number of terms")

sum = _row(  # noqa: A001 - the vocabulary's name, as torch.sum
    "sum", "The sum over ``dim``.", torch.sum, np.sum, ("torch.sum", "Tensor.sum", "builtins.sum"),
    accuracy=_SUM_NOTE,
)  # fmt: skip
max = _row(  # noqa: A001 - as torch.max
    "max", "The largest value over ``dim``; NaN where there is one.", torch.amax, np.max,
    ("torch.max", "Tensor.max", "builtins.max"),
)  # fmt: skip
min = _row(  # noqa: A001 - as torch.min
    "min", "The smallest value over ``dim``; NaN where there is one.", torch.amin, np.min,
    ("torch.min", "Tensor.min", "builtins.min"),
)  # fmt: skip
mean = _row(
    "mean", "The mean over ``dim``; floats also from integers.", _mean_torch, np.mean, ("torch.mean", "Tensor.mean"),
    result=Result.FLOAT, accuracy=_SUM_NOTE,
)  # fmt: skip
amax = _row(
    "amax", "As ``max``.", torch.amax, np.max, ("torch.amax", "Tensor.amax"),
)  # fmt: skip
amin = _row(
    "amin", "As ``min``.", torch.amin, np.min, ("torch.amin", "Tensor.amin"),
)  # fmt: skip
