# SPDX-License-Identifier: Apache-2.0
"""Tensor copies between global and shared memory (PTX ISA, "cp.async.bulk.tensor" and "prefetch.tensormap")."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from epifuse_cutedsl.kernels.ptx.asm import braced, emit


def prefetch_tensormap(tensor_map: Any) -> None:
    """Bring a tensor map (its generic address, Int64) into the descriptor cache."""
    emit("prefetch.tensormap [{$r0}];", (), [tensor_map])


def load(target: Any, tensor_map: Any, coordinates: Sequence[Any], barrier: Any) -> None:
    """Copy the box at ``coordinates`` (Int32, innermost dimension first) to the shared address ``target``.

    The mbarrier counts its bytes when they have come. What lies outside of the tensor becomes zero and counts too.
    """
    rank = len(coordinates)
    emit(
        f"cp.async.bulk.tensor.{rank}d.shared::cluster.global.mbarrier::complete_tx::bytes "
        f"[{{$r0}}], [{{$r1}}, {braced('r', rank, 3)}], [{{$r2}}];",
        (),
        [target, tensor_map, barrier, *coordinates],
    )
