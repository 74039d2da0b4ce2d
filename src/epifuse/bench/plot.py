# SPDX-License-Identifier: Apache-2.0
"""A picture of a suite: ours beside the best peer, problem by problem."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import Any

from epifuse.bench.kernels import SuiteResult


def available() -> bool:
    """Whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def save(result: SuiteResult, path: Path) -> None:
    """Write a PNG with a bar pair for each problem, in TFLOP/s, the ratio above.

    Raises:
        ImportError: matplotlib is not installed.
    """
    figure_module: Any = importlib.import_module("matplotlib.figure")
    pairs = [(p, p.ours(), p.best_peer()) for p in result.problems]
    pairs = [(p, ours, peer) for p, ours, peer in pairs if ours is not None or peer is not None]
    # A Figure of its own, without pyplot: no global state and no display.
    figure = figure_module.Figure(figsize=(max(6.0, 1.1 * len(pairs) + 2.0), 4.8), layout="constrained")
    axes = figure.add_subplot()
    for index, (_, ours, peer) in enumerate(pairs):
        if ours is not None:
            axes.bar(index - 0.2, ours.tflops, 0.4, color="#2b6cb0", label="epifuse" if index == 0 else None)
        if peer is not None:
            axes.bar(index + 0.2, peer.tflops, 0.4, color="#b8c4d0", label="best peer" if index == 0 else None)
            axes.text(index + 0.2, peer.tflops, f" {peer.contender}", rotation=90, ha="center", va="bottom", fontsize=7)
        if ours is not None and peer is not None:
            ratio = ours.tflops / peer.tflops
            axes.text(index - 0.2, ours.tflops, f"{ratio:.2f}", ha="center", va="bottom", fontsize=8)
    names = [f"{p.problem.workload}\n{p.problem.m}x{p.problem.n}x{p.problem.k}" for p, _, _ in pairs]
    axes.set_xticks(range(len(pairs)), names, rotation=45, ha="right", fontsize=7)
    axes.set_ylabel("TFLOP/s (medians)")
    axes.set_title(f"{result.suite} on {result.device.get('device', '')}", fontsize=10)
    axes.margins(y=0.25)
    if pairs:
        axes.legend(loc="upper right", fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
