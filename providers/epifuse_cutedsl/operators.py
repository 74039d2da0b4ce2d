# SPDX-License-Identifier: Apache-2.0
"""The operators of the CuTe DSL provider: thin records that say what a kernel supports, compile it and launch it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast

from epifuse import dtypes
from epifuse.arguments import EpilogueArguments, GemmArguments
from epifuse.dtypes import DType
from epifuse.errors import UnsupportedError
from epifuse.fusion.plan import EpiloguePlan
from epifuse.metadata import (
    BLASDesignMetadata,
    DenseTensorConstraints,
    EpilogueMetadata,
    GemmOperandsMetadata,
    OperatorMetadata,
)
from epifuse.operator import MetadataFilter, Operator
from epifuse.runtime.artifact import CompiledArtifact
from epifuse.runtime.rounding import tf32_allowed
from epifuse.status import Status
from epifuse.target import TargetSm
from epifuse.utils.device import target_of_operands
from epifuse.workspace import AllocationRequirement
from epifuse_cutedsl.compile import image_of
from epifuse_cutedsl.configs import model
from epifuse_cutedsl.configs.sm80 import Sm80Config, configurations
from epifuse_cutedsl.fuse import workspace as reductions
from epifuse_cutedsl.fuse.fragment import KernelFacts
from epifuse_cutedsl.fuse.params import parameters, traits_of, wanted_run
from epifuse_cutedsl.gemm_launch import Compiled, GemmLaunch
from epifuse_cutedsl.launch import Launcher
from epifuse_cutedsl.operands import PRODUCTS, kind_of, kinds_now, main_traits
from epifuse_cutedsl.provider import CuTeDSLProvider
from epifuse_cutedsl.support import refusal
from epifuse_cutedsl.tile.smem import limit_bytes

GROUPS = (1, 4, 8)
_MAIN_CODES = tuple("qqiiiiqqqqqqiii")
"""Struct codes of ``kernels.sm80.kernel.PARAMETERS``."""
_ARTIFACTS_KEPT = 256
_TARGETS = (TargetSm("80"),)
_ROOMIEST = 90
"""A compute capability whose CTAs have as much shared memory as any."""
MAX_TILES = 2**31 - 1


@CuTeDSLProvider.register
class Sm80GemmOperator(Operator):
    """The portable kernel: ``mma.sync`` or FMA on any GPU from compute capability 8.0 on, any strides, any shape."""

    supported_args_type = GemmArguments
    designed_for_min_cc = 80

    __slots__ = ("_artifacts", "config", "group")

    def __init__(self, metadata: OperatorMetadata, config: Sm80Config, group: int, *, accepted: object = None) -> None:
        super().__init__(metadata, accepted=accepted)
        self.config = config
        self.group = group
        self._artifacts: OrderedDict[Any, CompiledArtifact] = OrderedDict()

    def _supports_now(self, args: GemmArguments) -> Status:
        if self.config.kind == "tf32" and not tf32_allowed():
            return Status.fail("The operator multiplies in TF32, which torch's switch does not allow now")
        return Status.success()

    def _supports(self, args: GemmArguments, target_sm: TargetSm | None = None) -> Status:
        reason = refusal(args, target_sm)
        if reason is not None:
            return Status.fail(reason)
        if kind_of(args) != self.config.kind and (kind_of(args), self.config.kind) != ("tf32", "f32"):
            return Status.fail(f"The operator multiplies as {self.config.kind}, these operands as {kind_of(args)}")
        target = target_sm or _target(args)
        if target is not None and not self._fits_shared_memory(args, target):
            return Status.fail(f"Tiles of {self.config} need more shared memory than a CTA has on sm_{target}")
        if not _fits_grid(self.config, args):
            return Status.fail(f"Tiles of {self.config} are more than a grid can have, 2^31 - 1")
        return Status.success()

    def _fits_shared_memory(self, args: GemmArguments, target: TargetSm) -> bool:
        staged = max(self.config.smem_bytes(args.accumulator_type.bytes, axis) for axis in "nm")
        return staged + _scratch_bound(args) <= limit_bytes(target.cc)

    @classmethod
    def _explain(cls, args: GemmArguments, target_sm: TargetSm | None = None) -> Status:
        reason = refusal(args, target_sm)
        return Status.fail(reason or "No tile of the table fits the target's shared memory")

    def _estimate_us(self, args: GemmArguments, target_sm: TargetSm | None = None) -> float | None:
        return model.estimate_us(self.config, self.group, args, target_sm or _target(args))

    @classmethod
    def _generate_operators(
        cls,
        metadata_filter: MetadataFilter,
        epilogue_args: EpilogueArguments | None = None,
        target_sm: TargetSm | None = None,
        args: GemmArguments | None = None,
    ) -> list[Operator]:
        if args is None:
            return _registered(target_sm, metadata_filter)
        target = target_sm or _target(args)
        kind = kind_of(args)
        if target is None or kind is None or refusal(args, target) is not None:
            return []
        found = configurations(kind, args.accumulator_type.bytes, target.cc, _scratch_bound(args))
        a, b, out = (operand.traits.dtype for operand in (args.A, args.B, args.out))
        plan = None if args.epilogue is None else args.plan
        describe = _description(a, b, out, args.accumulator_type, plan)
        return _made([c for c in found if _fits_grid(c, args)], describe, metadata_filter)

    def _compile(self, args: GemmArguments, target_sm: TargetSm | None = None) -> CompiledArtifact:
        launch = cast("GemmLaunch | None", args.memo.get(self))
        if launch is not None and target_sm is None and args.device != "cpu":
            return launch.artifact
        target = target_sm or _target(args)
        if target is None:
            raise UnsupportedError(
                "The operands are CPU tensors, and no GPU is emulated for them.",
                advice="Run it inside `with epifuse.emulator.device('90a'):`, pass CUDA tensors, or compile for a GPU "
                "elsewhere: compile(args, target_sm='90a').",
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
            if compiled_artifact.compiled_obj.kinds != _kinds(args):
                raise UnsupportedError(
                    "The artifact was compiled for operands of other kinds: dtypes, alignments or which strides are 1.",
                    advice="Compile it for these arguments, or pass none: the operator keeps one for each kind.",
                )
            workspace_bytes = _workspace(self.config, args)
            launch = GemmLaunch(self.config, self.group, args, compiled_artifact, workspace_bytes)
            args.memo[self] = launch
        launch(stream, workspace)


def _target(args: GemmArguments) -> TargetSm | None:
    """The GPU that runs these arguments when no target is named."""
    return target_of_operands(args.A.device)


@dataclass(frozen=True, slots=True)
class _Description:
    """What the operators of one list share: operands, and the epilogue that is fused in."""

    dtypes: str
    operands: GemmOperandsMetadata
    epilogue: EpilogueMetadata | None = None

    def __call__(self, config: Sm80Config, group: int) -> OperatorMetadata:
        operands, tile = self.operands, (config.tile_m, config.tile_n, config.tile_k)
        suffix = "" if self.epilogue is None else f"_{self.epilogue.plan.key[:16]}"
        name = f"sm80_gemm_{config.kind}_{self.dtypes}_{tile[0]}x{tile[1]}x{tile[2]}_s{config.stages}_g{group}{suffix}"
        design = BLASDesignMetadata(tile_shape=tile, num_smem_stages=config.stages, group=group)
        return OperatorMetadata(name, Sm80GemmOperator, _TARGETS, operands, design, self.epilogue)


def _description(a: DType, b: DType, out: DType, accumulator: DType, plan: EpiloguePlan | None = None) -> _Description:
    operands = GemmOperandsMetadata(*(DenseTensorConstraints(dtype) for dtype in (a, b, out)), accumulator)
    names = "_".join(dtype.short for dtype in (a, b, out, accumulator))
    return _Description(names, operands, None if plan is None else EpilogueMetadata(plan))


def _made(configs: Iterable[Sm80Config], describe: _Description, metadata_filter: MetadataFilter) -> list[Operator]:
    found: list[Operator] = []
    for config in configs:
        for group in GROUPS:
            metadata = describe(config, group)
            if metadata_filter(metadata):
                found.append(Sm80GemmOperator(metadata, config, group))
    return found


def _registered(target: TargetSm | None, metadata_filter: MetadataFilter) -> list[Operator]:
    """Every operator that has no epilogue; without a target, those for the largest shared memory."""
    found: list[Operator] = []
    for product in PRODUCTS:
        a, b, accumulator = (dtypes.of(name) for name in product)
        for kind in kinds_now(product):
            configs = configurations(kind, accumulator.bytes, _ROOMIEST if target is None else target.cc)
            for out in dict.fromkeys((accumulator, a)):
                found += _made(configs, _description(a, b, out, accumulator), metadata_filter)
    return found


def _folds_batches(args: GemmArguments) -> bool:
    return args.problem_size.L > 1 and any(reduce.axes[0] for reduce in args.plan.reduces)


def _scratch_bound(args: GemmArguments) -> int:
    """Shared memory that reductions may need in the largest configuration: 8 warps of 256 partials."""
    return 8 * 256 * reductions.PARTIAL_BYTES if args.plan.reduces else 0


def _fits_grid(config: Sm80Config, args: GemmArguments) -> bool:
    m, n, _, batches = args.problem_size
    return -(-m // config.tile_m) * -(-n // config.tile_n) * batches <= MAX_TILES


def _workspace(config: Sm80Config, args: GemmArguments) -> tuple[int, int]:
    if not args.plan.reduces:
        return 0, 0
    m, n, _, batches = args.problem_size
    tiles = (-(-m // config.tile_m), -(-n // config.tile_n))
    tile = (config.tile_m, config.tile_n)
    return reductions.workspace_bytes(args.plan, _folds_batches(args), tile, tiles, batches)


def _kinds(args: GemmArguments) -> tuple[Any, ...]:
    """What of the arguments a kernel is compiled for: A, B, accumulator, plan, epilogue tensors, batches folded."""
    a, b = main_traits(args.A.traits, k_last=True), main_traits(args.B.traits, k_last=False)
    traits = traits_of(args.bound, args.problem_size.L)
    return a, b, args.accumulator_type, args.plan.key, traits, _folds_batches(args)


def _compiled(config: Sm80Config, args: GemmArguments, target: TargetSm) -> Compiled:
    plan = args.plan
    kinds = _kinds(args)
    a, b, accumulator, _, traits, folds = kinds
    shape = config.stage_shape(accumulator.bytes, traits.axis, wanted_run(plan, traits))
    facts = KernelFacts(config.tile_m, config.tile_n, config.threads, target.cc, shape.run, shape.runs, shape.lanes)

    def make() -> Any:
        from epifuse_cutedsl.fuse.driver import Epilogue  # noqa: PLC0415 - imports the DSL, which only compiling needs
        from epifuse_cutedsl.kernels.sm80.kernel import Sm80Gemm  # noqa: PLC0415 - likewise

        return Sm80Gemm(config, a, b, accumulator, Epilogue(plan, traits, facts, folds))

    codes = (*_MAIN_CODES, *(param.code for param in parameters(plan, traits)))
    parts = ("sm80", config, kinds, facts)
    return Compiled(Launcher(image_of(parts, codes, target, make)), traits, kinds)
