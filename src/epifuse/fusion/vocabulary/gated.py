# SPDX-License-Identifier: Apache-2.0
"""The gated rows: of each pair of adjacent columns the first is activated and gates the second.

The result has N/2 columns. torch's ``glu`` splits the columns in two halves instead and activates the second, so no
torch name means any of these.
"""

from __future__ import annotations

from typing import Any

from epifuse.fusion.vocabulary.composite import composite, gelu, relu, sigmoid, silu
from epifuse.fusion.vocabulary.primitive import even_columns, odd_columns
from epifuse.fusion.vocabulary.table import Accuracy, CostClass, Level, Result


@composite(None, level=Level.GATED, cost=CostClass.SPECIAL, accuracy=Accuracy(7.0, 1e-36))
def glu(x: Any) -> Any:
    """sigmoid(even columns) * odd columns."""
    return sigmoid(even_columns(x)) * odd_columns(x)


@composite(None, level=Level.GATED, result=Result.SAME, accuracy=Accuracy(0.5))
def reglu(x: Any) -> Any:
    """relu(even columns) * odd columns; integers stay integers."""
    return relu(even_columns(x)) * odd_columns(x)


@composite(None, level=Level.GATED, cost=CostClass.SPECIAL, choices={"approximate": ("none", "tanh")},
           accuracy=Accuracy(5.0, 5e-7, "times the odd column's magnitude", short_absolute=1e-6))  # fmt: skip
def geglu(x: Any, approximate: str = "none") -> Any:
    """gelu(even columns) * odd columns."""
    return gelu(even_columns(x), approximate=approximate) * odd_columns(x)


@composite(None, level=Level.GATED, cost=CostClass.SPECIAL, accuracy=Accuracy(9.0, 1e-36))
def swiglu(x: Any) -> Any:
    """silu(even columns) * odd columns."""
    return silu(even_columns(x)) * odd_columns(x)
