# SPDX-License-Identifier: Apache-2.0
"""``GemmOperator``: what every fused GEMM kernel of this provider is to the user, once for all architectures.

A subclass states what differs: the dtypes it multiplies, what it refuses, its configurations, the facts that the
epilogue's engine asks for, the kernel, the kernel's parameters and the launch.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, cast

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
from epifuse.records import NamedTuple
from epifuse.runtime.artifact import CompiledArtifact
from epifuse.runtime.rounding import tf32_allowed
from epifuse.status import Status
from epifuse.target import TargetSm
from epifuse.utils.device import target_of_operands
from epifuse.workspace import AllocationRequirement
from epifuse_cutedsl.compile import Kernel, image_of
from epifuse_cutedsl.fuse import workspace as reductions
from epifuse_cutedsl.fuse.boxes import Boxes
from epifuse_cutedsl.fuse.facts import KernelFacts
from epifuse_cutedsl.fuse.params import EpilogueTraits, parameters, traits_of
from epifuse_cutedsl.gemm_launch import Compiled, GemmLaunch
from epifuse_cutedsl.launch import Launcher
from epifuse_cutedsl.run_workspace import Copies, RunWorkspace
from epifuse_cutedsl.tile.smem import limit_bytes

if TYPE_CHECKING:
    from epifuse_cutedsl.configs.padded import PaddedForm

_ARTIFACTS_KEPT = 256
_ROOMIEST = 90
"""A compute capability whose CTAs have as much shared memory as any."""
WORKSPACE_ALIGNMENT_BYTES = 16

Product = tuple[str, str, str]
"""Names of the dtypes of A, B and the accumulator."""


class GemmConfig(Protocol):
    """What a row of a table of configurations has, on any architecture; hashable and equal by value."""

    @property
    def tile_m(self) -> int:
        """Rows of a CTA's tile."""

    @property
    def tile_n(self) -> int:
        """Columns of a CTA's tile."""

    @property
    def tile_k(self) -> int:
        """Elements of K in one stage."""

    @property
    def stages(self) -> int:
        """Stages of the main loop's ring."""

    @property
    def epilogue_tile(self) -> tuple[int, int]:
        """Rows and columns of what the epilogue's engine takes for a tile: reductions have a partial for each."""

    @property
    def words(self) -> str:
        """All that tells the configuration from others, for the operator's name."""


class Kinds(NamedTuple):
    """What of the arguments a kernel is compiled for; other arguments of equal kinds take the same artifact."""

    main: tuple[Any, ...]
    """A and B as the main loop sees them (``GemmOperator._main_kinds``)."""
    accumulator: DType
    plan_key: str
    traits: EpilogueTraits
    folds: bool
    """Whether a reduction folds several batches."""
    boxes: Boxes = Boxes()
    """The epilogue's tensors that move by tensor copies."""
    copies: tuple[PaddedForm | None, ...] = (None, None)
    """How A and B are copied before, where they are; the kernel itself does not depend on it."""


class GemmOperator(Operator):
    """A configuration of a fused GEMM kernel, and the number of tiles that CTAs take together along M (``group``)."""

    supported_args_type = GemmArguments

    architecture: ClassVar[str]
    """First word of the operators' names, such as ``sm80``; part of the key of compiled images."""
    title: ClassVar[str]
    """The kernel in sentences, such as ``Hopper kernel``."""
    targets: ClassVar[tuple[TargetSm, ...]]
    groups: ClassVar[tuple[int, ...]]
    products: ClassVar[tuple[Product, ...]]
    """What is listed without arguments."""
    main_codes: ClassVar[tuple[str, ...]]
    """Struct codes of the kernel's parameters before those of the epilogue."""
    scratch_numbers: ClassVar[int]
    """Partial results of reductions that an epilogue tile keeps in shared memory, in the largest configuration."""
    most_tiles: ClassVar[int] = 2**31 - 1
    launch_class: ClassVar[type[GemmLaunch]] = GemmLaunch

    __slots__ = ("_artifacts", "_listed_for", "config", "group")

    def __init__(self, metadata: OperatorMetadata, config: Any, group: int) -> None:
        super().__init__(metadata)
        self.config = config
        self.group = group
        self._artifacts: OrderedDict[Any, CompiledArtifact] = OrderedDict()
        self._listed_for: TargetSm = self.targets[0]
        """The GPU that errors suggest."""

    # What a kernel states.

    @classmethod
    @abstractmethod
    def _refusal(cls, args: GemmArguments, target: TargetSm | None) -> UnsupportedError | str | None:
        """Why no configuration takes these arguments on a target that the kernel runs on; None where some does."""

    @classmethod
    @abstractmethod
    def _configurations(cls, product: Product, cc: int, args: GemmArguments | None) -> Iterable[Any]:
        """Legal configurations for these dtypes, in table order; for arguments (``product`` is theirs) those to be
        offered, with room for their epilogue (``scratch_bytes``): ``_supports`` accepts every one of them."""

    @classmethod
    def _plain_configurations(cls, product: Product, out: DType, cc: int) -> Iterable[Any]:
        """Every configuration that stores the accumulator as ``out``, for the list without arguments."""
        return cls._configurations(product, cc, None)

    @classmethod
    def _config_refusal(cls, config: Any, args: GemmArguments) -> str | None:
        """What of a configuration does not go with the arguments, beside its tiles' number and shared memory."""
        return None

    @classmethod
    @abstractmethod
    def _smem_bytes(cls, config: Any, args: GemmArguments) -> int:
        """Shared memory of a CTA at most, the scratch memory of reductions (``scratch_bytes``) included."""

    @classmethod
    def _design(cls, config: Any, group: int) -> BLASDesignMetadata:
        """What of the configuration users may filter on."""
        tile = (config.tile_m, config.tile_n, config.tile_k)
        return BLASDesignMetadata(tile_shape=tile, num_smem_stages=config.stages, group=group)

    @classmethod
    @abstractmethod
    def _main_kinds(cls, args: GemmArguments) -> tuple[Any, ...]:
        """What of A and B the kernel is compiled for."""

    @classmethod
    def _boxes(cls, args: GemmArguments) -> Boxes:
        """The epilogue's tensors that the kernel moves by tensor copies."""
        return Boxes()

    def _own_boxes(self, args: GemmArguments) -> Boxes:
        """Those of this configuration."""
        return self._boxes(args)

    @classmethod
    def _copies(cls, args: GemmArguments) -> Copies:
        """The copies of A and of B that a run makes first."""
        return None, None

    @abstractmethod
    def _facts(self, plan: EpiloguePlan, kinds: Kinds, cc: int) -> KernelFacts:
        """The kernel as the epilogue's engine sees it."""

    @abstractmethod
    def _kernel(self, kinds: Kinds, epilogue: Any) -> Kernel:
        """The kernel around an epilogue. Called for the compiler alone: imports the DSL inside."""

    # What is the same for all.

    @classmethod
    def _status(cls, args: GemmArguments, target: TargetSm | None) -> Status:
        """What all configurations answer alike; asked for each, and so remembered with the arguments."""
        key = (cls, target, tf32_allowed())
        found: Status | None = args.memo.get(key)
        if found is None:
            found = args.memo[key] = cls._asked(args, target)
        return found

    @classmethod
    def _asked(cls, args: GemmArguments, target: TargetSm | None) -> Status:
        if target is not None and not target.supports_operators_from(cls.targets):
            wanted = ", ".join(f"sm_{t}" for t in cls.targets)
            named = target.cc in (made_for.cc for made_for in cls.targets)  # without the suffix
            hint = f"; name {wanted}, which such a GPU is" if named else ""
            return Status.fail(f"The {cls.title} is made for {wanted}, not for sm_{target}{hint}")
        reason = cls._refusal(args, target)
        return Status.success() if reason is None else Status.fail(reason)

    def _supports(self, args: GemmArguments, target_sm: TargetSm | None = None) -> Status:
        target = target_sm or target_of(args)
        status = self._status(args, target)
        if not status:
            return status
        reason = None if is_empty(args) else self._config_refusal(self.config, args)
        if reason is not None:
            return Status.fail(reason)
        if target is not None and self._smem_bytes(self.config, args) > limit_bytes(target.cc):
            return Status.fail(f"Tiles of {self.config} need more shared memory than a CTA has on sm_{target}")
        if not self.fits_grid(self.config, args):
            return Status.fail(f"Tiles of {self.config} are more than a grid can have, {self.most_tiles}")
        return status

    @classmethod
    def _explain(cls, args: GemmArguments, target_sm: TargetSm | None = None) -> Status:
        status = cls._status(args, target_sm or target_of(args))
        return status if not status else Status.fail("No tile of the table fits the target's shared memory")

    @classmethod
    def scratch_bytes(cls, args: GemmArguments | None) -> int:
        """Shared memory that the reductions of an epilogue tile need at most; none without arguments."""
        return cls.scratch_numbers * reductions.PARTIAL_BYTES if args is not None and args.plan.reduces else 0

    @classmethod
    def fits_grid(cls, config: GemmConfig, args: GemmArguments) -> bool:
        """Whether the configuration has no more tiles than the kernel can count."""
        m, n, _, batches = args.problem_size
        return -(-m // config.tile_m) * -(-n // config.tile_n) * batches <= cls.most_tiles

    @classmethod
    def _generate_operators(
        cls,
        metadata_filter: MetadataFilter,
        epilogue_args: EpilogueArguments | None = None,
        target_sm: TargetSm | None = None,
        args: GemmArguments | None = None,
    ) -> list[Operator]:
        if args is None:
            return cls._registered(target_sm, metadata_filter)
        target = target_sm or target_of(args)
        if target is None or not cls._status(args, target):
            return []
        a, b, out = (operand.traits.dtype for operand in (args.A, args.B, args.out))
        product = (a.name, b.name, args.accumulator_type.name)
        found = cls._configurations(product, target.cc, args)
        plan = None if args.epilogue is None else args.plan
        describe = _description(a, b, out, args.accumulator_type, plan)
        made = cls._made([c for c in found if cls.fits_grid(c, args)], describe, metadata_filter)
        if made and made[0].metadata.supports(args, target_sm=target):
            # What the metadata say is the same for all, and configurations for arguments are those that take them.
            for operator in made:
                operator._accepted = (args.key, target)
                operator._listed_for = target
        return made

    @classmethod
    def _registered(cls, target: TargetSm | None, metadata_filter: MetadataFilter) -> list[Operator]:
        """Every operator that has no epilogue; without a target, those for the largest shared memory."""
        found: list[Operator] = []
        if target is not None and not target.supports_operators_from(cls.targets):
            return found
        for product in cls.products:
            a, b, accumulator = (dtypes.of(name) for name in product)
            for out in dict.fromkeys((accumulator, a)):
                configs = cls._plain_configurations(product, out, target.cc if target else _ROOMIEST)
                found += cls._made(configs, _description(a, b, out, accumulator), metadata_filter)
        return found

    @classmethod
    def _made(
        cls, configs: Iterable[GemmConfig], describe: _Description, metadata_filter: MetadataFilter
    ) -> list[Operator]:
        found: list[Operator] = []
        for config in configs:
            for group in cls.groups:
                metadata = describe(cls, config, group)
                if metadata_filter(metadata):
                    found.append(cls(metadata, config, group))
        return found

    @classmethod
    def operator_of(cls, args: GemmArguments, config: Any, group: int) -> GemmOperator:
        """The operator of one configuration for arguments, listed or not: for measurements and tests."""
        a, b, out = (operand.traits.dtype for operand in (args.A, args.B, args.out))
        plan = None if args.epilogue is None else args.plan
        return cls(_description(a, b, out, args.accumulator_type, plan)(cls, config, group), config, group)

    def _compile(self, args: GemmArguments, target_sm: TargetSm | None = None) -> CompiledArtifact:
        launch = cast("GemmLaunch | None", args.memo.get(self))
        if launch is not None and target_sm is None and args.device != "cpu":
            return launch.artifact
        target = target_sm or target_of(args)
        if target is None:
            raise UnsupportedError(
                "The operands are CPU tensors, and no GPU is emulated for them.",
                advice=f"Run it inside `with epifuse.emulator.device('{self._listed_for}'):`, pass CUDA tensors, or "
                f"compile for a GPU elsewhere: compile(args, target_sm='{self._listed_for}').",
            )
        key = (args.key, target)
        artifact = self._artifacts.get(key)
        if artifact is None:
            artifact = CompiledArtifact(self._compiled(args, target), self, target)
            self._artifacts[key] = artifact
            if len(self._artifacts) > _ARTIFACTS_KEPT:
                self._artifacts.popitem(last=False)
        return artifact

    def _kinds(self, args: GemmArguments) -> Kinds:
        traits = traits_of(args.bound, args.problem_size.L)
        main, folds = self._main_kinds(args), folds_batches(args)
        forms = tuple(copy and copy.form for copy in self._copies(args))
        return Kinds(main, args.accumulator_type, args.plan.key, traits, folds, self._own_boxes(args), forms)

    def _compiled(self, args: GemmArguments, target: TargetSm) -> Compiled:
        plan, kinds = args.plan, self._kinds(args)
        facts = self._facts(plan, kinds, target.cc)

        def make() -> Kernel:
            from epifuse_cutedsl.fuse.driver import Epilogue  # noqa: PLC0415 - imports the DSL, for compiling alone

            return self._kernel(kinds, Epilogue(plan, kinds.traits, facts, kinds.folds, kinds.boxes))

        codes = (*self.main_codes, *(param.code for param in parameters(plan, kinds.traits)))
        parts = (self.architecture, self.config, kinds._replace(copies=()), facts)
        a, b = (copy and copy.launcher(target) for copy in self._copies(args))
        return Compiled(Launcher(image_of(parts, codes, target, make)), kinds.traits, kinds, (a, b))

    def _get_workspace_size(self, args: GemmArguments) -> AllocationRequirement:
        total = self._run_workspace(args).bytes
        return AllocationRequirement(total, WORKSPACE_ALIGNMENT_BYTES) if total else AllocationRequirement.empty()

    def _run_workspace(self, args: GemmArguments) -> RunWorkspace:
        return RunWorkspace(*self._workspace(args), self._copies(args))

    def _workspace(self, args: GemmArguments) -> tuple[int, int]:
        """Bytes of the reductions' workspace, and how many of the first ones must be zero."""
        if not args.plan.reduces:
            return 0, 0
        m, n, _, batches = args.problem_size
        tile_m, tile_n = tile = self.config.epilogue_tile
        tiles = (-(-m // tile_m), -(-n // tile_n))
        return reductions.workspace_bytes(args.plan, folds_batches(args), tile, tiles, batches)

    def _run(
        self, args: GemmArguments, compiled_artifact: CompiledArtifact, stream: Any, workspace: Any = None
    ) -> None:
        launch = args.memo.get(self)
        if launch is None or launch.artifact is not compiled_artifact:
            if compiled_artifact.compiled_obj.kinds != self._kinds(args) and not is_empty(args):
                raise UnsupportedError(
                    "The artifact was compiled for operands of other kinds: dtypes, alignments, which strides are 1, "
                    "whether K is 0 or, of 8-bit floats, 2048 or more.",
                    advice="Compile it for these arguments, or pass none: the operator keeps one for each kind.",
                )
            launch = self.launch_class(self.config, self.group, args, compiled_artifact, self._run_workspace(args))
            args.memo[self] = launch
        launch(stream, workspace)


def target_of(args: GemmArguments) -> TargetSm | None:
    """The GPU that runs these arguments when no target is named."""
    return target_of_operands(args.A.device)


def is_empty(args: GemmArguments) -> bool:
    """Whether nothing is launched. Strides and alignments of tensors with nothing in them say nothing of a kernel."""
    m, n, _, batches = args.problem_size
    return not m * n * batches


def folds_batches(args: GemmArguments) -> bool:
    """Whether a reduction of the plan folds several batches."""
    return args.problem_size.L > 1 and any(reduce.axes[0] for reduce in args.plan.reduces)


class _Description(NamedTuple):
    """What the operators of one list share: operands, and the epilogue that is fused in."""

    dtypes: str
    operands: GemmOperandsMetadata
    epilogue: EpilogueMetadata | None = None

    def __call__(self, family: type[GemmOperator], config: GemmConfig, group: int) -> OperatorMetadata:
        suffix = "" if self.epilogue is None else f"_{self.epilogue.plan.key[:16]}"
        name = f"{family.architecture}_gemm_{self.dtypes}_{config.words}_g{group}{suffix}"
        design = family._design(config, group)
        return OperatorMetadata(name, family, family.targets, self.operands, design, self.epilogue)


def _description(a: DType, b: DType, out: DType, accumulator: DType, plan: EpiloguePlan | None = None) -> _Description:
    operands = GemmOperandsMetadata(*(DenseTensorConstraints(dtype) for dtype in (a, b, out)), accumulator)
    names = "_".join(dtype.short for dtype in (a, b, out, accumulator))
    return _Description(names, operands, None if plan is None else EpilogueMetadata(plan))
