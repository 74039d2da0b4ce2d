# SPDX-License-Identifier: Apache-2.0
"""Tensor copies between global and shared memory (PTX ISA, "cp.async.bulk.tensor" and "prefetch.tensormap")."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from epifuse_cutedsl.kernels.ptx.asm import braced, emit


def prefetch_tensormap(tensor_map: Any) -> None:
    """Bring a tensor map (its generic address, Int64) into the descriptor cache."""
    emit("prefetch.tensormap [{$r0}];", (), [tensor_map])


def load(target: Any, tensor_map: Any, coordinates: Sequence[Any], barrier: Any, ctas: int = 1) -> None:
    """Copy the box at ``coordinates`` (Int32, innermost dimension first) to the shared address ``target``.

    The mbarrier counts its bytes when they have come. What lies outside of the tensor becomes zero and counts too.
    With several ``ctas``, the box goes to the same address in each of the cluster's CTAs of ranks below that number,
    and each one's mbarrier counts.
    """
    rank = len(coordinates)
    to = "" if ctas == 1 else ".multicast::cluster"
    mask = "" if ctas == 1 else ", ranks"
    text = (
        f"cp.async.bulk.tensor.{rank}d.shared::cluster.global.mbarrier::complete_tx::bytes{to} "
        f"[{{$r0}}], [{{$r1}}, {braced('r', rank, 3)}], [{{$r2}}]{mask};"
    )
    if ctas > 1:
        text = f"{{\n.reg .b16 ranks;\nmov.b16 ranks, {(1 << ctas) - 1};\n{text}\n}}"
    emit(text, (), [target, tensor_map, barrier, *coordinates])
