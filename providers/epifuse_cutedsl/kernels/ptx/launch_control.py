# SPDX-License-Identifier: Apache-2.0
"""Clusters that are not launched yet, taken over by running ones (PTX ISA, "clusterlaunchcontrol")."""

from __future__ import annotations

from typing import Any

from cutlass import Int32

from epifuse_cutedsl.kernels.ptx.asm import emit

ANSWER_BYTES = 16


def try_cancel(answer: Any, barrier: Any, *, cluster: bool) -> None:
    """Ask for the work of a cluster that is not launched yet. The answer goes to the shared address ``answer`` (on 16
    bytes) and counts at the mbarrier; with ``cluster``, to and at those of all CTAs of the cluster."""
    everyone = ".multicast::cluster::all" if cluster else ""
    form = f"try_cancel.async.shared::cta.mbarrier::complete_tx::bytes{everyone}.b128"
    emit(f"clusterlaunchcontrol.{form} [{{$r0}}], [{{$r1}}];", (), [answer, barrier])


def first_cta(answer: Any) -> Any:
    """The x index of the first CTA of the cluster whose work an answer gives (Int32); -1 where there is none left."""
    text = (
        "{\n.reg .b128 answer;\n.reg .b64 low, high;\n.reg .pred given;\n.reg .b32 x;\n"
        "ld.shared.v2.b64 {low, high}, [{$r0}];\nmov.b128 answer, {low, high};\n"
        "clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 given, answer;\nmov.b32 x, -1;\n"
        "@given clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128 x, answer;\nmov.b32 {$w0}, x;\n}"
    )
    return emit(text, [Int32], [answer])[0]
