# SPDX-License-Identifier: Apache-2.0
"""A user's own operator, outside the tree: one class that takes the plan and says what of it it supports."""

import torch

import epifuse as ops
from epifuse.metadata import DenseTensorConstraints, EpilogueMetadata, GemmOperandsMetadata

EMIT = {"add": torch.add, "mul": torch.mul}


class MyGemm(ops.Operator):
    supported_args_type, designed_for_min_cc = ops.GemmArguments, 0

    @classmethod
    def _generate_operators(cls, metadata_filter, epilogue_args=None, target_sm=None, args=None):
        if args is None or target_sm or args.device != "cpu":
            return []
        tensors = (DenseTensorConstraints(t.dtype) for t in (args.A, args.B, args.out))
        operands = GemmOperandsMetadata(*tensors, args.accumulator_type)
        return [cls(ops.OperatorMetadata("mine.gemm", cls, (), operands, epilogue=EpilogueMetadata(args.plan)))]

    def _supports(self, args, target_sm=None):
        unknown = {c.primitive for c in args.plan.computes} - set(EMIT) or {r.combine for r in args.plan.reduces}
        return ops.Status.fail(f"MyGemm does not know {sorted(unknown)}") if unknown else ops.Status.success()

    def _compile(self, args, target_sm=None):
        return ops.CompiledArtifact(args.plan, self, None)

    def _run(self, args, compiled_artifact, stream, workspace=None):
        accum = args.A.view.float() @ args.B.view.float()
        plan = args.plan
        slots = [accum if x.operand < 0 else torch.as_tensor(args.loads[x.operand]) for x in plan.loads]
        slots += [torch.tensor(x.literal.value) for x in plan.constants]
        for c in plan.computes:
            slots.append(EMIT[c.primitive](*(slots[i] for i in c.operands)))
        for store in plan.stores:
            args.outputs[store.destination].copy_(slots[store.operand])
