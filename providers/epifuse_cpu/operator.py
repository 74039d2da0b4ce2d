# SPDX-License-Identifier: Apache-2.0
"""``CpuGemmOperator``: any GEMM with any epilogue on CPU tensors, through ``accumulate`` and ``evaluate``."""

from __future__ import annotations

from typing import Any

import torch

from epifuse.arguments import EpilogueArguments, GemmArguments
from epifuse.dtypes import DType
from epifuse.errors import UnsupportedError
from epifuse.fusion.plan import EpiloguePlan
from epifuse.metadata import DenseTensorConstraints, EpilogueMetadata, GemmOperandsMetadata, OperatorMetadata
from epifuse.operator import MetadataFilter, Operator
from epifuse.runtime.artifact import CompiledArtifact
from epifuse.status import Status
from epifuse.target import TargetSm
from epifuse_cpu.configs import combinations, refusal
from epifuse_cpu.evaluate import evaluate
from epifuse_cpu.gemm import accumulate
from epifuse_cpu.primitives import EMITTERS
from epifuse_cpu.provider import CpuProvider


@CpuProvider.register
class CpuGemmOperator(Operator):
    """One combination of dtypes and one epilogue (or none). Runs for CPU tensors and no GPU target."""

    supported_args_type = GemmArguments
    designed_for_min_cc = 0

    def _supports(self, args: GemmArguments, target_sm: TargetSm | None = None) -> Status:
        return _place(args.device)

    @classmethod
    def _explain(cls, args: GemmArguments, target_sm: TargetSm | None = None) -> Status:
        return _answer(args, target_sm)

    def _compile(self, args: GemmArguments, target_sm: TargetSm | None = None) -> CompiledArtifact:
        return CompiledArtifact(compiled_obj=args.plan, operator_obj=self, compiled_for=None)

    def _run(
        self, args: GemmArguments, compiled_artifact: CompiledArtifact, stream: Any, workspace: Any = None
    ) -> None:
        _require_data(args)
        with torch.inference_mode():  # makes no gradients, and may write outputs that were made in that mode
            accum = accumulate(args.A.view, args.B.view, args.accumulator_type)
            results = evaluate(args.plan, accum, args.loads)
            # All is computed before the first write: a failure leaves outputs untouched, and C may be D.
            for output, result in zip(args.outputs, results, strict=True):
                output.copy_(result.reshape(output.shape))

    @classmethod
    def _generate_operators(
        cls,
        metadata_filter: MetadataFilter,
        epilogue_args: EpilogueArguments | None = None,
        target_sm: TargetSm | None = None,
        args: GemmArguments | None = None,
    ) -> list[Operator]:
        if args is None:
            listed = () if target_sm else combinations()
            made = [cls(_metadata(a, b, out, acc)) for a, b, acc in listed for out in dict.fromkeys((acc, a))]
        elif _answer(args, target_sm):
            plan = None if args.epilogue is None else args.plan
            dtypes = (args.A.traits.dtype, args.B.traits.dtype, args.out.traits.dtype, args.accumulator_type)
            made = [cls(_metadata(*dtypes, plan), accepted=(args.key, None))]
        else:
            made = []
        return [operator for operator in made if metadata_filter(operator.metadata)]


def _metadata(a: DType, b: DType, out: DType, accumulator: DType, plan: EpiloguePlan | None = None) -> OperatorMetadata:
    a_any, b_any, out_any = (DenseTensorConstraints(dtype) for dtype in (a, b, out))
    name = f"epifuse_cpu.gemm_{a.short}_{b.short}_{out.short}_{accumulator.short}"
    return OperatorMetadata(
        operator_name=name if plan is None else f"{name}_{plan.key[:16]}",
        operator_class=CpuGemmOperator,
        supported_targets=(),
        operands=GemmOperandsMetadata(a_any, b_any, out_any, accumulator),
        epilogue=None if plan is None else EpilogueMetadata(plan),
    )


def _answer(args: GemmArguments, target_sm: TargetSm | None) -> Status:
    if target_sm is not None:
        return Status.fail(f"Runs on the CPU, not on sm_{target_sm}")
    if not (status := _place(args.device)):
        return status
    reason = refusal(args.A.traits.dtype, args.B.traits.dtype, args.accumulator_type)
    if reason is not None:
        return Status.fail(reason)
    for compute in args.plan.computes:
        if compute.primitive not in EMITTERS:
            sentence = f"The CPU provider has no primitive {compute.primitive}"
            return Status.fail(UnsupportedError(sentence, subject=compute.primitive))
    return Status.success()


def _place(device: str) -> Status:
    return Status.success() if device == "cpu" else Status.fail(f"Runs on CPU tensors; these are on {device}")


def _require_data(args: GemmArguments) -> None:
    traits = (args.A.traits, args.B.traits, *args.bound.load_traits, *args.bound.output_traits)
    if any(t is not None and t.address is None for t in traits):
        raise UnsupportedError(
            "The arguments hold fake tensors, which have no data to compute with.",
            advice="Discover with fake tensors, then run with GemmArguments of real ones.",
        )
