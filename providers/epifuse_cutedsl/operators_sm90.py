# SPDX-License-Identifier: Apache-2.0
"""``Sm90GemmOperator``: the Hopper kernel as an operator. It takes what tensor copies can move and refuses the rest."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from epifuse.arguments import EpilogueArguments, GemmArguments
from epifuse.errors import UnsupportedError
from epifuse.metadata import (
    BLASDesignMetadata,
    DenseTensorConstraints,
    EpilogueMetadata,
    GemmOperandsMetadata,
    OperatorMetadata,
)
from epifuse.operator import MetadataFilter, Operator
from epifuse.runtime.artifact import CompiledArtifact
from epifuse.runtime.tensormap import CODE
from epifuse.status import Status
from epifuse.target import TargetSm
from epifuse.utils.device import target_of_operands
from epifuse.workspace import AllocationRequirement
from epifuse_cutedsl.compile import image_of
from epifuse_cutedsl.configs.sm90 import BLOCK_M, WARPGROUP, Sm90Config, configurations
from epifuse_cutedsl.fuse import workspace as reductions
from epifuse_cutedsl.fuse.fragment import KernelFacts
from epifuse_cutedsl.fuse.params import parameters, traits_of, wanted_run
from epifuse_cutedsl.gemm_launch import Compiled
from epifuse_cutedsl.launch import Launcher
from epifuse_cutedsl.operands import kind_of
from epifuse_cutedsl.sm90_launch import Sm90Launch, operands
from epifuse_cutedsl.support import refusal
from epifuse_cutedsl.tma_operands import tma_operand

GROUPS = (1, 8)
_MAIN_CODES = (CODE, CODE, *"iiiiiiiii")
"""Struct codes of the tensor maps of A and B and of ``kernels.sm90.kernel.NUMBERS``."""
_ARTIFACTS_KEPT = 256
_TARGET = TargetSm("90a")
_MAX_TILES = 2**31 - 1 - 2**16
"""So that the number behind the last tile, some grids on, is still an int32."""


def refusal_of_operands(args: GemmArguments) -> str | None:
    """Why the Hopper kernel does not multiply these operands; None where it does."""
    a, accumulator = args.A.traits.dtype.name, args.accumulator_type.name
    if kind_of(args) != "half" or accumulator != "float32":
        return (
            f"The Hopper kernel multiplies float16 or bfloat16 into float32, not {a} and {args.B.traits.dtype.name} "
            f"into {accumulator}"
        )
    for name, traits, k_last in (("A", args.A.traits, True), ("B", args.B.traits, False)):
        found = tma_operand(traits, k_last=k_last)
        if isinstance(found, str):
            return f"Tensor copies cannot move {name}: {found}"
    return None


class Sm90GemmOperator(Operator):
    """The Hopper kernel: tensor copies and ``wgmma``, persistent, for 16-bit operands.

    Not in any list until its configurations are ranked: ``CuTeDSLProvider.register(Sm90GemmOperator)`` puts them,
    without a predicted time, behind the portable kernel's.
    """

    supported_args_type = GemmArguments
    designed_for_min_cc = 90

    __slots__ = ("_artifacts", "config", "group")

    def __init__(self, metadata: OperatorMetadata, config: Sm90Config, group: int, *, accepted: object = None) -> None:
        super().__init__(metadata, accepted=accepted)
        self.config = config
        self.group = group
        self._artifacts: OrderedDict[Any, CompiledArtifact] = OrderedDict()

    def _supports(self, args: GemmArguments, target_sm: TargetSm | None = None) -> Status:
        return _status(args, target_sm or _target(args), self.config)

    @classmethod
    def _explain(cls, args: GemmArguments, target_sm: TargetSm | None = None) -> Status:
        status = _status(args, target_sm or _target(args))
        return status if not status else Status.fail("No tile of the table fits the target's shared memory")

    @classmethod
    def _generate_operators(
        cls,
        metadata_filter: MetadataFilter,
        epilogue_args: EpilogueArguments | None = None,
        target_sm: TargetSm | None = None,
        args: GemmArguments | None = None,
    ) -> list[Operator]:
        if args is None:
            return []
        target = target_sm or _target(args)
        if target is None or not _status(args, target):
            return []
        made: list[Operator] = []
        for config in configurations(target.cc, _scratch_bound(args)):
            for group in GROUPS:
                metadata = _metadata(args, config, group)
                if metadata_filter(metadata):
                    made.append(cls(metadata, config, group))
        return made

    def _compile(self, args: GemmArguments, target_sm: TargetSm | None = None) -> CompiledArtifact:
        target = target_sm or _target(args)
        if target is None:
            raise UnsupportedError(
                "There is no GPU to compile for.", advice="Name one: compile(args, target_sm='90a')."
            )
        key = (args.key, target)
        artifact = self._artifacts.get(key)
        if artifact is None:
            artifact = CompiledArtifact(_compiled(self.config, args, target), self, target)
            self._artifacts[key] = artifact
            if len(self._artifacts) > _ARTIFACTS_KEPT:
                self._artifacts.popitem(last=False)
        return artifact

    def _get_workspace_size(self, args: GemmArguments) -> AllocationRequirement:
        total, _ = _workspace(self.config, args)
        return AllocationRequirement(total, 16) if total else AllocationRequirement.empty()

    def _run(
        self, args: GemmArguments, compiled_artifact: CompiledArtifact, stream: Any, workspace: Any = None
    ) -> None:
        launch = args.memo.get(self)
        if launch is None or launch.artifact is not compiled_artifact:
            launch = Sm90Launch(self.config, self.group, args, compiled_artifact, _workspace(self.config, args))
            args.memo[self] = launch
        launch(stream, workspace)


def _target(args: GemmArguments) -> TargetSm | None:
    """The GPU that runs these arguments when no target is named."""
    return target_of_operands(args.A.device)


def _status(args: GemmArguments, target: TargetSm | None, config: Sm90Config | None = None) -> Status:
    if target is not None and not target.supports_operators_from((_TARGET,)):
        return Status.fail(f"The Hopper kernel runs on sm_{_TARGET} alone, not on sm_{target}")
    reason = refusal(args, target) or refusal_of_operands(args)
    if reason is not None:
        return Status.fail(reason)
    m, n, _, batches = args.problem_size
    if config is not None and -(-m // config.tile_m) * -(-n // config.tile_n) * batches > _MAX_TILES:
        return Status.fail(f"Tiles of {config} are more than 2^31")
    return Status.success()


def _metadata(args: GemmArguments, config: Sm90Config, group: int) -> OperatorMetadata:
    a, b, accumulator = args.A.traits.dtype, args.B.traits.dtype, args.accumulator_type
    plan = None if args.epilogue is None else args.plan
    out = DenseTensorConstraints(args.out.traits.dtype) if plan is None else None
    tile = (config.tile_m, config.tile_n, config.tile_k)
    mode = "pingpong" if config.pingpong else "cooperative"
    suffix = "" if plan is None else f"_{plan.key[:16]}"
    shape = f"{tile[0]}x{tile[1]}x{tile[2]}_{mode}_c{config.cluster}_s{config.stages}_e{config.epilogue_n}_g{group}"
    return OperatorMetadata(
        f"sm90_gemm_{a.short}_{b.short}_{accumulator.short}_{shape}{suffix}",
        Sm90GemmOperator,
        (_TARGET,),
        GemmOperandsMetadata(DenseTensorConstraints(a), DenseTensorConstraints(b), out, accumulator),
        BLASDesignMetadata(
            tile_shape=tile, cluster_shape=(config.cluster, 1, 1), num_smem_stages=config.stages, group=group
        ),
        None if plan is None else EpilogueMetadata(plan),
    )


def _folds_batches(args: GemmArguments) -> bool:
    return args.problem_size.L > 1 and any(reduce.axes[0] for reduce in args.plan.reduces)


def _scratch_bound(args: GemmArguments) -> int:
    """Shared memory that reductions may need for a piece of 64 rows and up to 128 columns: a line for each warp."""
    return 4 * 128 * reductions.PARTIAL_BYTES if args.plan.reduces else 0


def _workspace(config: Sm90Config, args: GemmArguments) -> tuple[int, int]:
    if not args.plan.reduces:
        return 0, 0
    m, n, _, batches = args.problem_size
    tile = (BLOCK_M, config.epilogue_n)
    tiles = (-(-m // tile[0]), -(-n // tile[1]))
    return reductions.workspace_bytes(args.plan, _folds_batches(args), tile, tiles, batches)


def _compiled(config: Sm90Config, args: GemmArguments, target: TargetSm) -> Compiled:
    plan = args.plan
    traits = traits_of(args.bound, args.problem_size.L)
    folds = _folds_batches(args)
    majors = tuple(operand.major for operand in operands(args))
    dtype = args.A.traits.dtype
    shape = config.stage_shape(traits.axis, wanted_run(plan, traits))
    facts = KernelFacts(BLOCK_M, config.epilogue_n, WARPGROUP, target.cc, shape.run, shape.runs, shape.lanes)

    def make() -> Any:
        from epifuse_cutedsl.fuse.driver import Epilogue  # noqa: PLC0415 - imports the DSL, which only compiling needs
        from epifuse_cutedsl.kernels.sm90.kernel import Sm90Gemm  # noqa: PLC0415 - likewise

        return Sm90Gemm(config, dtype, *majors, Epilogue(plan, traits, facts, folds))

    codes = (*_MAIN_CODES, *(param.code for param in parameters(plan, traits)))
    parts = ("sm90", config, dtype, majors, plan.key, traits, facts, folds)
    return Compiled(Launcher(image_of(parts, codes, target, make)), traits, folds)
