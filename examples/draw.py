# SPDX-License-Identifier: Apache-2.0
"""The graph of an epilogue as text, as mermaid and as a picture."""

import tempfile
from pathlib import Path

import epifuse as ops
from epifuse.fusion.activation import gelu
from epifuse.fusion.ir import show


def feed_forward(accum, bias, residual, alpha):
    """F is kept for the backward pass."""
    F = accum * alpha + bias
    D = gelu(F) + residual
    return D, F


graph = ops.fusion.frontend.parse(feed_forward)
print(graph)
print(show.graph_mermaid(graph))
picture = Path(tempfile.mkdtemp()) / "feed_forward.svg"
picture.write_text(show.graph_svg(graph), encoding="utf-8")
print(f"{picture.name}: {picture.stat().st_size} bytes")
