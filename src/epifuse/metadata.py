# SPDX-License-Identifier: Apache-2.0
"""What an operator says about itself: operands it takes, targets it runs on, design, and the epilogue fused into it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from epifuse import dtypes
from epifuse.arguments import DenseTensor, GemmArguments, RuntimeArguments
from epifuse.dtypes import DType
from epifuse.fusion.plan import EpiloguePlan
from epifuse.records import dataclass
from epifuse.runtime.tensors import MAX_ALIGNMENT_BYTES
from epifuse.status import Status
from epifuse.target import TargetLike, TargetSm

if TYPE_CHECKING:
    from epifuse.operator import Operator
    from epifuse.provider import Provider


@dataclass(frozen=True)
class DenseTensorConstraints:
    """What an operator asks of one dense operand.

    ``dtype`` may be given as a torch dtype, a DSL type or a name. ``stride`` None: any strides; otherwise 1 marks the
    unit-stride dimension and 0 a free one, as in the Operator API. ``divisibility`` counts elements and holds for the
    extents of the unit-stride dimension and other strides.
    """

    dtype: DType
    stride: tuple[int, ...] | None = None
    divisibility: int = 1
    ptr_alignment_bytes: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", dtypes.of(self.dtype))

    @property
    def alignment_bytes(self) -> int:
        """Alignment of the pointer in bytes; that of ``divisibility`` elements unless said otherwise."""
        return self.ptr_alignment_bytes or max(1, self.divisibility * self.dtype.bits // 8)

    def supports(self, operand: Any) -> Status:
        """Whether a ``DenseTensor`` meets the constraints."""
        if not isinstance(operand, DenseTensor):
            return Status.fail(f"Expected a dense tensor, got {type(operand).__name__}")
        traits = operand.traits
        if traits.dtype is not self.dtype:
            return Status.fail(f"Expected dtype {self.dtype.name}, got {traits.dtype.name}")
        if traits.address is not None and traits.alignment_bytes < min(self.alignment_bytes, MAX_ALIGNMENT_BYTES):
            return Status.fail(
                f"Expected a pointer aligned to {self.alignment_bytes} bytes, got {traits.alignment_bytes}"
            )
        if self.stride is not None and 1 in self.stride:
            return self._supports_strides(traits.shape, traits.strides)
        return Status.success()

    def _supports_strides(self, shape: tuple[int, ...], strides: tuple[int, ...]) -> Status:
        assert self.stride is not None
        unit = self.stride.index(1) - len(self.stride)
        for dim in range(-len(shape), 0):
            if dim == unit:
                if shape[dim] > 1 and strides[dim] != 1:
                    return Status.fail(f"Expected unit stride in dimension {dim}, got strides {strides}")
                if shape[dim] % self.divisibility:
                    return Status.fail(f"Expected extent {dim} divisible by {self.divisibility}, got shape {shape}")
            elif shape[dim] > 1 and strides[dim] % self.divisibility:
                return Status.fail(f"Expected strides divisible by {self.divisibility}, got {strides}")
        return Status.success()


@dataclass(frozen=True)
class OperandsMetadata:
    """Base of what an operator says about its operands."""

    def supports(self, args: Any) -> Status:
        """Whether the operands of ``args`` meet the constraints."""
        return Status.success()


@dataclass(frozen=True)
class GemmOperandsMetadata(OperandsMetadata):
    """Constraints on A, B and out, and the accumulator's dtype."""

    A: DenseTensorConstraints
    B: DenseTensorConstraints
    out: DenseTensorConstraints | None
    """None where ``out`` may be of any dtype and layout."""
    accumulator_type: DType

    def __post_init__(self) -> None:
        object.__setattr__(self, "accumulator_type", dtypes.of(self.accumulator_type))

    def supports(self, args: Any) -> Status:
        """Whether the operands of ``GemmArguments`` meet the constraints."""
        if not isinstance(args, GemmArguments):
            return Status.fail(f"Expected GemmArguments, got {type(args).__name__}")
        if args.accumulator_type is not self.accumulator_type:
            return Status.fail(
                f"Expected accumulator type {self.accumulator_type.name}, got {args.accumulator_type.name}"
            )
        for name in ("A", "B", "out"):
            constraints = getattr(self, name)
            if constraints is None:
                continue
            status = constraints.supports(getattr(args, name))
            if not status:
                return Status.fail(f"Operand `{name}` is unsupported: {status.error}")
        return Status.success()


@dataclass(frozen=True)
class DesignMetadata:
    """Base of what an operator says about how it computes; none of it changes results."""

    def supports(self, args: RuntimeArguments) -> Status:
        """Whether the run's performance controls can be followed."""
        if args.performance is not None:
            return Status.fail("The operator has no performance controls")
        return Status.success()


@dataclass(frozen=True, kw_only=True)
class BLASDesignMetadata(DesignMetadata):
    """Tile and cluster of a GEMM kernel, in elements and CTAs, and its main-loop stages."""

    mma_instruction_type: Any = None
    tile_shape: tuple[int, ...] = ()
    cluster_shape: tuple[int, ...] = (1, 1, 1)
    num_smem_stages: int | None = None
    group: int = 1
    """Tiles along M that CTAs take together before they go on along N."""


@dataclass(frozen=True, kw_only=True)
class Sm90DesignMetadata(BLASDesignMetadata):
    """Design of a kernel for SM90: ``pingpong`` warpgroups take tiles by turns, others share each tile; ``split_k``
    CTAs share each tile's K, in clusters that are so many times as large as ``cluster_shape``."""

    pingpong: bool = False
    split_k: int = 1
    epilogue_tile: tuple[int, int] = (0, 0)
    """Rows and columns that a warpgroup's epilogue works on at a time."""


@dataclass(frozen=True, kw_only=True)
class Sm100DesignMetadata(BLASDesignMetadata):
    """Design of a kernel for the SM100 family."""

    use_2cta_mma: bool = False
    use_tma_store: bool = True
    tile_scheduler: Any = None


@dataclass(frozen=True)
class EpilogueMetadata:
    """The epilogue that is fused into an operator."""

    plan: EpiloguePlan

    def supports(self, args: Any) -> Status:
        """Whether ``args`` ask for this very epilogue (operands of the same kinds, another alpha, other shapes)."""
        plan = getattr(args, "plan", None)
        if plan is self.plan or plan == self.plan:
            return Status.success()
        return Status.fail(
            "Another epilogue is fused into this operator (other operations, operand kinds or dtypes)",
        )


@dataclass(frozen=True)
class OperatorMetadata:
    """All that distinguishes one operator from another; read-only.

    ``operator_name`` is unique among all operators but no stable interface: filter on the fields. A
    ``supported_targets`` of ``80`` implies every later architecture, ``100f`` its family, ``90a`` itself alone; an
    operator that runs on no GPU has none.
    """

    operator_name: str
    operator_class: type[Operator]
    supported_targets: tuple[TargetSm, ...]
    operands: OperandsMetadata
    design: DesignMetadata | None = None
    epilogue: EpilogueMetadata | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "supported_targets", tuple(self.supported_targets))

    @property
    def provider(self) -> type[Provider]:
        """The provider with which the operator's class is registered."""
        return self.operator_class._provider

    def supports(self, args: RuntimeArguments | None, *, target_sm: TargetLike = None) -> Status:
        """Whether ``args`` and ``target_sm`` meet everything that is declared here; either may be None, not both.

        Raises:
            ValueError: both are None.
        """
        target = TargetSm.ensure(target_sm)
        if args is None and target is None:
            raise ValueError("Either args or target_sm must be provided")
        if target is not None and not target.supports_operators_from(self.supported_targets):
            wanted = ", ".join(f"sm_{t}" for t in self.supported_targets) or "no GPU (it runs on the CPU)"
            return Status.fail(f"The operator cannot run on sm_{target}; it is made for {wanted}")
        if args is None:
            return Status.success()
        if self.supported_targets and (negated := getattr(args, "negated", ())):
            return Status.fail(
                f"{', '.join(negated)} is a view that torch has negated lazily, which a kernel would not see; "
                "pass x.resolve_neg()"
            )
        if not (status := self.operands.supports(args)):
            return status
        if self.design is not None and not (status := self.design.supports(args)):
            return status
        if self.design is None and args.performance is not None:
            return Status.fail("The operator has no performance controls")
        if self.epilogue is not None:
            return self.epilogue.supports(args)
        if getattr(args, "epilogue", None) is not None:
            return Status.fail("The operator has no epilogue but the arguments bring one")
        return Status.success()
