# SPDX-License-Identifier: Apache-2.0
"""``Sm100GemmOperator``: the Blackwell kernel as an operator. What tensor copies cannot move is copied before."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from epifuse import dtypes
from epifuse.arguments import GemmArguments
from epifuse.dtypes import DType
from epifuse.errors import UnsupportedError
from epifuse.fusion.plan import EpiloguePlan, Transport
from epifuse.metadata import Sm100DesignMetadata
from epifuse.runtime.rounding import tf32_allowed
from epifuse.runtime.tensormap import CODE
from epifuse.status import Status
from epifuse.target import ArchPortability, TargetSm
from epifuse_cutedsl.compile import Kernel
from epifuse_cutedsl.configs import times_sm100
from epifuse_cutedsl.configs.sm100 import COLUMN_RUN, RUNS, WARP, Sm100Config, Tails, configurations
from epifuse_cutedsl.configs.sm100_products import PRODUCTS
from epifuse_cutedsl.fuse import workspace as reductions
from epifuse_cutedsl.fuse.boxes import MOST_MAPS, Box, Boxes, boxes_of
from epifuse_cutedsl.fuse.facts import KernelFacts, kept_rows
from epifuse_cutedsl.gemm_operator import GemmOperator, Kinds, Product, folds_batches, target_of
from epifuse_cutedsl.provider import MADE_FOR, CuTeDSLProvider
from epifuse_cutedsl.run_workspace import Copies
from epifuse_cutedsl.sm100_launch import Sm100Launch, axis_of, piece_of, product_of, routes
from epifuse_cutedsl.support import Ways, refusal

_FIRST = "100a"
_ONLY_TF32 = "The Blackwell kernel multiplies float32 in TF32, which torch's switch does not allow now"


@CuTeDSLProvider.register
class Sm100GemmOperator(GemmOperator):
    """The Blackwell kernel: tensor copies, ``tcgen05`` products into tensor memory, persistent."""

    designed_for_min_cc = 100
    architecture = "sm100"
    title = "Blackwell kernel"
    targets = (MADE_FOR["sm100"],)
    groups = (8, 1)
    products = tuple(PRODUCTS)
    main_codes = (*(CODE,) * (2 + MOST_MAPS), *"iiiiiiiii")
    """Struct codes of the tensor maps of A, B and the epilogue's boxes, and of ``kernels.sm100.kernel.NUMBERS``."""
    scratch_numbers = 4 * 256
    most_tiles = 2**31 - 1 - 2**16
    """So that the number behind the last tile, some grids on, is still an int32."""
    launch_class = Sm100Launch

    __slots__ = ()

    def _supports_now(self, args: GemmArguments) -> Status:
        product = product_of(args)
        if product is not None and product.kind == "tf32" and not tf32_allowed():
            return Status.fail(_ONLY_TF32)
        return Status.success()

    @classmethod
    def _refusal(cls, args: GemmArguments, target: TargetSm | None) -> UnsupportedError | str | None:
        reason = _operand_refusal(args, target)
        return reason or refusal(args, target, Ways(cls.title, cls._boxes(args), RUNS[0]))

    @classmethod
    def _configurations(cls, product: Product, cc: int, args: GemmArguments | None) -> Iterable[Sm100Config]:
        size = dtypes.of(product[0]).bytes
        if args is None:
            return configurations(cc, size, True, True)
        found = configurations(cc, size, *_majors(args), cls.scratch_bytes(args), cls.tails(args))
        if not _must_copy(args):
            return found
        return [config for config in found if cls._copies_all(config, args)]

    @classmethod
    def _plain_configurations(cls, product: Product, out: DType, cc: int) -> Iterable[Sm100Config]:
        columns = _columns([out])
        tails = _tails(Boxes(outputs=(Box(out.bytes, WARP, columns, batched=False),)), columns, "n", reduces=False)
        majors = [(True, b == "k") for b in PRODUCTS[product].majors]
        size = dtypes.of(product[0]).bytes
        return [config for each in majors for config in configurations(cc, size, *each, 0, tails)]

    @classmethod
    def _config_refusal(cls, config: Sm100Config, args: GemmArguments) -> str | None:
        if (config.a_k_major, config.b_k_major) != _majors(args):
            return f"The operator is made for operands of other majors than these: {config}"
        tail = cls.tails(args).of(config)
        if config.tail != tail:
            return f"The operator's epilogue goes as {config.tail}, these arguments' as {tail}"
        if _must_copy(args) and not cls._copies_all(config, args):
            return f"Tensor copies do not move steps of this tile: {config}"
        return None

    @classmethod
    def _copies_all(cls, config: Sm100Config, args: GemmArguments) -> bool:
        """Whether all that the user wants to be moved by tensor copies has boxes."""
        loads = [load.route for load in args.plan.loads if load.operand >= 0]
        boxes = cls._boxes_with(config, args)
        stored = [(store.route, boxes.outputs and boxes.outputs[store.destination]) for store in args.plan.stores]
        loaded = zip(loads, boxes.loads or (None,) * len(loads), strict=True)
        return all(box for route, box in (*stored, *loaded) if route and route.via is Transport.TMA)

    @classmethod
    def _boxes(cls, args: GemmArguments) -> Boxes:
        """Those of the longest steps."""
        found = args.memo.get(cls)
        if found is None:
            axis = axis_of(args)
            found = args.memo[cls] = boxes_of(args.bound, WARP, _longest(_columns(_full_dtypes(args.plan)), axis), axis)
        return cast("Boxes", found)

    def _own_boxes(self, args: GemmArguments) -> Boxes:
        return self._boxes_with(self.config, args)

    @classmethod
    def _boxes_with(cls, config: Sm100Config, args: GemmArguments) -> Boxes:
        """Those of a configuration's steps."""
        if not config.tail.bytes:
            return Boxes()
        axis = axis_of(args)
        piece = config.piece(axis, bool(args.plan.reduces))
        return cls._boxes(args).narrowed(_longest(config.tail.columns, axis) // piece.run, WARP // piece.lanes)

    @classmethod
    def tails(cls, args: GemmArguments) -> Tails:
        """How the arguments' epilogue goes."""
        columns = _columns(_full_dtypes(args.plan))
        found = _tails(cls._boxes(args), columns, axis_of(args), reduces=bool(args.plan.reduces))
        return found._replace(rows=kept_rows(args.plan))

    @classmethod
    def scratch_bytes(cls, args: GemmArguments) -> int:
        """Shared memory that the reductions of all pieces of a tile need at most."""
        results = sum(not (reduce.axes[1] and reduce.axes[2]) for reduce in args.plan.reduces)
        return cls.scratch_numbers * reductions.PARTIAL_BYTES * (1 + results) if args.plan.reduces else 0

    @classmethod
    def _smem_bytes(cls, config: Sm100Config, args: GemmArguments) -> int:
        return config.smem_bytes(cls.scratch_bytes(args))

    @classmethod
    def _design(cls, config: Sm100Config, group: int) -> Sm100DesignMetadata:
        tile = (config.tile_m * config.ctas, config.tile_n, config.tile_k)  # of the instruction
        cluster = (config.cluster_m, config.cluster_n, 1)
        return Sm100DesignMetadata(
            tile_shape=tile,
            cluster_shape=cluster,
            num_smem_stages=config.stages,
            group=group,
            use_2cta_mma=config.ctas == 2,
            use_tma_store=config.tail.piece_bytes > 0,
            tile_scheduler="dynamic persistent" if config.dynamic else "static persistent",
        )

    @classmethod
    def _main_kinds(cls, args: GemmArguments) -> tuple[Any, ...]:
        return product_of(args), *_majors(args)

    @classmethod
    def _copies(cls, args: GemmArguments) -> Copies:
        a, b = routes(args)
        return a.copy, b.copy

    def _facts(self, plan: EpiloguePlan, kinds: Kinds, cc: int) -> KernelFacts:
        axis = kinds.traits.axis
        piece = self.config.piece(axis, bool(plan.reduces))
        threads = WARP * piece.warps
        if axis == "n":
            return KernelFacts(
                piece.rows,
                piece.columns,
                threads,
                cc,
                run=piece.run,
                positions=1,
                lanes=1,
                steps_along=True,
                kept_columns=piece.columns,
            )
        lines = {"run": 1, "positions": 1, "lanes": piece.lanes, "lines": piece.run, "kept_columns": piece.columns}
        return KernelFacts(piece.rows, piece.columns, threads, cc, **lines)

    def _kernel(self, kinds: Kinds, epilogue: Any) -> Kernel:
        from epifuse_cutedsl.kernels.sm100.kernel import Sm100Gemm  # noqa: PLC0415 - imports the DSL

        return Sm100Gemm(self.config, kinds.main[0], epilogue)

    def _estimate_us(self, args: GemmArguments, target_sm: TargetSm | None = None) -> float | None:
        target = target_sm or target_of(args)
        found = times_sm100.estimate_us(self.config, self.group, args, target)
        if found is None or target is None:
            return found
        return found + sum(copy.estimate_us(target.cc) for copy in self._copies(args) if copy is not None)

    def _workspace(self, args: GemmArguments) -> tuple[int, int]:
        if not args.plan.reduces:
            return 0, 0
        m, n, _, batches = args.problem_size
        tile = piece_of(self.config, args)
        tiles = (-(-m // tile[0]), -(-n // tile[1]))
        return reductions.workspace_bytes(args.plan, folds_batches(args), tile, tiles, batches)


def _must_copy(args: GemmArguments) -> bool:
    """Whether the user wants a tensor to be moved by tensor copies."""
    return any(each.route and each.route.via is Transport.TMA for each in (*args.plan.loads, *args.plan.stores))


def _full_dtypes(plan: EpiloguePlan) -> list[DType]:
    """The dtypes of an epilogue's full tensors."""
    loads = [load.dtype for load in plan.loads if load.operand >= 0 and load.broadcast.m and load.broadcast.n]
    return [*loads, *(store.dtype for store in plan.stores)]


def _columns(full: Iterable[DType]) -> int:
    """Columns of a step: 64 where full tensors have 16 bits or fewer, so that a row of a box has 128 bytes."""
    return 64 if max((dtype.bytes for dtype in full), default=4) <= 2 else 32


def _longest(columns: int, axis: str) -> int:
    """Columns of a step at most, where full tensors let it have ``columns``."""
    return columns if axis == "n" else min(columns, COLUMN_RUN)


def _tails(boxes: Boxes, columns: int, axis: str, *, reduces: bool) -> Tails:
    """How an epilogue goes with these boxes of the longest steps."""
    longest = _longest(columns, axis)
    sizes = (boxes.narrowed(longest // run).piece_bytes if run <= longest else 0 for run in RUNS)
    return Tails(columns, reduces, tuple(sizes), axis)


def _majors(args: GemmArguments) -> tuple[bool, bool]:
    """Whether A and B are K-major."""
    a, b = (route.operand.major == "k" for route in routes(args))
    return a, b


def _operand_refusal(args: GemmArguments, target: TargetSm | None) -> str | None:
    """Why the Blackwell kernel does not multiply these operands; None where it does."""
    names = (args.A.traits.dtype.name, args.B.traits.dtype.name, args.accumulator_type.name)
    product = product_of(args)
    if product is None:
        return f"The Blackwell kernel does not multiply {names[0]} by {names[1]} into {names[2]}"
    if product.kind == "tf32" and not tf32_allowed():
        return _ONLY_TF32
    if target is not None and target.portability is ArchPortability.Portable:
        return f"tcgen05 is no part of the portable sm_{target}: name sm_{target}a or sm_{target}f"
    if target is not None and not product.in_family and str(target) != _FIRST:
        return f"Of this family only sm_{_FIRST} multiplies {names[0]} by {names[1]}, not sm_{target}"
    return None
