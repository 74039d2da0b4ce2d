# SPDX-License-Identifier: Apache-2.0
"""``Sm90GemmOperator``: the Hopper kernel as an operator. What tensor copies cannot move is copied before."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from epifuse.arguments import GemmArguments
from epifuse.dtypes import DType
from epifuse.errors import UnsupportedError
from epifuse.fusion.plan import EpiloguePlan, Transport
from epifuse.metadata import Sm90DesignMetadata
from epifuse.runtime.rounding import tf32_allowed
from epifuse.runtime.tensormap import CODE
from epifuse.status import Status
from epifuse.target import TargetSm
from epifuse_cutedsl.compile import Kernel
from epifuse_cutedsl.configs import times_sm90
from epifuse_cutedsl.configs.sm90 import (
    NARROWEST,
    OPERAND_MAPS,
    STAGED,
    WARP_ROWS,
    WARPGROUP,
    Sm90Config,
    Tail,
    configurations,
)
from epifuse_cutedsl.configs.sm90_products import KINDS, product_of
from epifuse_cutedsl.fuse.boxes import MOST_MAPS, Box, Boxes, boxes_of
from epifuse_cutedsl.fuse.facts import KernelFacts, kept_rows
from epifuse_cutedsl.fuse.params import traits_of, wanted_run
from epifuse_cutedsl.gemm_operator import GemmConfig, GemmOperator, Kinds, Product, is_empty, target_of
from epifuse_cutedsl.provider import MADE_FOR, CuTeDSLProvider
from epifuse_cutedsl.run_workspace import Copies
from epifuse_cutedsl.sm90_launch import Sm90Launch, routes
from epifuse_cutedsl.support import Ways, refusal
from epifuse_cutedsl.tile import division
from epifuse_cutedsl.tile.operand import SWIZZLE_BYTES

_DIRECT_RUN = 2
"""Accumulators beside one another that a thread has."""
_STAGED_RUN = 16
_FEW = 256
"""Up to so many rows or columns, configurations with swapped operands are listed."""
_ONLY_TF32 = "The Hopper kernel multiplies float32 in TF32, which torch's switch does not allow now"


def refusal_of_operands(args: GemmArguments) -> str | None:
    """Why the Hopper kernel does not multiply these operands; None where it does."""
    a, b, accumulator = product_of(args)
    kind = KINDS.get((a, b, accumulator))
    if kind is None:
        return f"The Hopper kernel does not multiply {a} and {b} into {accumulator}"
    if kind.rounded and not tf32_allowed():
        return _ONLY_TF32
    return None


@CuTeDSLProvider.register
class Sm90GemmOperator(GemmOperator):
    """The Hopper kernel: tensor copies and ``wgmma``, persistent, for 16-bit operands."""

    designed_for_min_cc = 90
    architecture = "sm90"
    title = "Hopper kernel"
    targets = (MADE_FOR["sm90"],)
    groups = (1, 8)
    products = tuple(KINDS)
    main_codes = (*(CODE,) * (OPERAND_MAPS + MOST_MAPS), *"iiiiiiiiiiii", *"i" * division.NUMBERS)
    """Struct codes of the tensor maps of A, B and the epilogue's boxes, and of ``kernels.sm90.kernel.NUMBERS``."""
    scratch_numbers = 4 * 128
    """A line for each of 4 warps, for a piece of 64 rows and up to 128 columns."""
    most_tiles = 2**31 - 1 - 2**16
    """So that the number behind the last tile, some grids on, is still an int32."""
    launch_class = Sm90Launch

    __slots__ = ()

    def _supports_now(self, args: GemmArguments) -> Status:
        if KINDS[product_of(args)].rounded and not tf32_allowed():
            return Status.fail(_ONLY_TF32)
        return Status.success()

    @classmethod
    def _refusal(cls, args: GemmArguments, target: TargetSm | None) -> UnsupportedError | str | None:
        return refusal_of_operands(args) or refusal(args, target, cls._ways(args))

    @classmethod
    def _ways(cls, args: GemmArguments) -> Ways:
        boxes = cls._boxes(args)
        return Ways(cls.title, boxes, _DIRECT_RUN if boxes.outputs else _STAGED_RUN)

    @classmethod
    def _configurations(cls, product: Product, cc: int, args: GemmArguments | None) -> Iterable[Sm90Config]:
        if args is None:
            return configurations(cc, kind=KINDS[product])
        kind, scratch = KINDS[product], cls.scratch_bytes(args)
        found = configurations(cc, scratch, cls.tails(args), kind=kind)
        if min(args.problem_size.M, args.problem_size.N) <= _FEW:
            short = "m" if args.problem_size.M <= args.problem_size.N else "n"
            swapped = configurations(cc, scratch, kind=kind, swapped=short)
            found += tuple(config for config in swapped if _reads_once(config, args))
        return [config for config in found if cls._config_refusal(config, args) is None]

    @classmethod
    def _plain_configurations(cls, product: Product, out: DType, cc: int) -> Iterable[Sm90Config]:
        columns = 64 if out.bytes <= 2 else 32
        widths, kind = _widths(columns), KINDS[product]
        direct = tuple(Tail(True, width, Box(out.bytes, WARP_ROWS, width, batched=False).bytes) for width in widths)
        return configurations(cc, 0, direct, kind=kind) + configurations(cc, kind=kind)

    @classmethod
    def _config_refusal(cls, config: Sm90Config, args: GemmArguments) -> str | None:
        if config.split > max(1, -(-args.problem_size.K // config.tile_k)):
            return f"{config.split} CTAs cannot share K = {args.problem_size.K}"
        tails = STAGED if config.swapped else cls.tails(args)
        if config.tail not in tails:
            return f"The operator's epilogue goes as {config.tail}, these arguments' as one of {tails}"
        if config.swapped and args.A.traits.dtype is not args.B.traits.dtype:
            return "Swapped operands are of one dtype"
        if config.swapped and _asks_for_copies(args.plan):
            return "With swapped operands, no tensor of the epilogue moves by tensor copies"
        if config.tail == STAGED[-1] and _asks_for_widths(args.plan):
            return f"Pieces of {NARROWEST} columns move some tensors by fewer bits at a time than they could"
        name, route = config.turned(tuple(zip("AB", routes(args), strict=True)))[1]
        if route.operand.major != "k" and config.columns * config.element_bytes % SWIZZLE_BYTES:
            return f"Products of {config.columns} positions of {name} take one that is contiguous along K"
        return None

    @classmethod
    def fits_grid(cls, config: GemmConfig, args: GemmArguments) -> bool:
        """Whether the configuration has no more tiles than the kernel can count."""
        m, n = config.turned((args.problem_size.M, args.problem_size.N))
        tiles = -(-m // config.tile_m) * -(-n // config.tile_n)
        return tiles * args.problem_size.L <= cls.most_tiles

    @classmethod
    def _boxes(cls, args: GemmArguments) -> Boxes:
        """None at all where the epilogue is staged: where runs lie along M, or an output has no box and the user has
        asked for no tensor copy."""
        found = args.memo.get(cls)
        if found is None:
            boxes = boxes_of(args.bound, WARP_ROWS, _columns(args.plan))
            rows = traits_of(args.bound, args.problem_size.L).axis == "n"
            copied = all(boxes.outputs[store.destination] is not None for store in args.plan.stores)
            direct = rows and (copied or _asks_for_copies(args.plan))
            found = args.memo[cls] = boxes if direct else Boxes()
        return cast("Boxes", found)

    def _own_boxes(self, args: GemmArguments) -> Boxes:
        if not self.config.tail.direct:
            return Boxes()
        return self._boxes(args).narrowed(_columns(args.plan) // self.config.tail.columns)

    @classmethod
    def tails(cls, args: GemmArguments) -> tuple[Tail, ...]:
        """How the arguments' epilogue goes, by pieces of so many columns or fewer, the widest first: as few as all
        tensors' boxes can have."""
        key = (cls, Tail)
        found = args.memo.get(key)
        if found is None:
            boxes = cls._boxes(args)
            found = args.memo[key] = _tails(args.plan, boxes) if boxes.outputs else STAGED
        return cast("tuple[Tail, ...]", found)

    @classmethod
    def _smem_bytes(cls, config: Sm90Config, args: GemmArguments) -> int:
        return config.smem_bytes(cls.scratch_bytes(args))

    @classmethod
    def _design(cls, config: Sm90Config, group: int) -> Sm90DesignMetadata:
        tile, cluster = (
            config.turned(pair) for pair in ((config.tile_m, config.tile_n), (config.cluster, config.cluster_n))
        )
        return Sm90DesignMetadata(
            tile_shape=(*tile, config.tile_k),
            cluster_shape=(*cluster, 1),
            num_smem_stages=config.stages,
            group=group,
            pingpong=config.pingpong,
            split_k=config.split,
            swapped=config.swapped,
            epilogue_tile=config.epilogue_tile,
        )

    @classmethod
    def _main_kinds(cls, args: GemmArguments) -> tuple[Any, ...]:
        kind = KINDS[product_of(args)]
        majors = ("k", "k") if is_empty(args) else (route.operand.major for route in routes(args))
        return kind, *majors, kind.interval(args), args.problem_size.K == 0

    @classmethod
    def _copies(cls, args: GemmArguments) -> Copies:
        a, b = routes(args)
        return a.copy, b.copy

    def _facts(self, plan: EpiloguePlan, kinds: Kinds, cc: int) -> KernelFacts:
        config, traits = self.config, kinds.traits
        if config.tail.direct:
            positions = config.epilogue_n // 8
            return KernelFacts(
                *config.epilogue_tile,
                WARPGROUP,
                cc,
                run=_DIRECT_RUN,
                positions=positions,
                lanes=4,
                lines=2,
                kept_columns=config.columns,
                beside_wgmma=True,
            )
        shape = config.stage_shape(traits.axis, wanted_run(plan, traits))
        return KernelFacts(*config.epilogue_tile, WARPGROUP, cc, shape.run, shape.runs, shape.lanes, beside_wgmma=True)

    def _kernel(self, kinds: Kinds, epilogue: Any) -> Kernel:
        from epifuse_cutedsl.kernels.sm90.kernel import Sm90Gemm  # noqa: PLC0415 - imports the DSL

        return Sm90Gemm(self.config, *kinds.main, epilogue)

    def _estimate_us(self, args: GemmArguments, target_sm: TargetSm | None = None) -> float | None:
        target = target_sm or target_of(args)
        a, b = self._copies(args)
        found = times_sm90.estimate_us(self.config, self.group, args, target, (a is not None, b is not None))
        if found is None or target is None:
            return found
        return found + sum(copy.estimate_us(target.cc) for copy in (a, b) if copy is not None)


def _reads_once(config: Sm90Config, args: GemmArguments) -> bool:
    """Whether one tile, or those of a cluster, cover the problem's short side: the other operand is read once.

    200 x 5120 x 5120 takes 26.6 us where tiles of 80 read B three times, 5120 x 200 x 5120 22.0 where a pair reads A.
    """
    m, n = args.problem_size.M, args.problem_size.N
    covered = config.turned((config.tile_m * config.cluster, config.tile_n * config.cluster_n))
    return (m if m <= n else n) <= covered[m > n]


def _asks_for_copies(plan: EpiloguePlan) -> bool:
    routes = [move.route for move in (*plan.loads, *plan.stores)]
    return any(route is not None and route.via is Transport.TMA for route in routes)


def _asks_for_widths(plan: EpiloguePlan) -> bool:
    return any(move.route is not None and move.route.bits_per_copy for move in (*plan.loads, *plan.stores))


def _widths(columns: int) -> tuple[int, ...]:
    """Columns of pieces, the widest first."""
    return (columns, NARROWEST)


def _tails(plan: EpiloguePlan, boxes: Boxes) -> tuple[Tail, ...]:
    """How a direct epilogue goes, by widths at which all tensors have boxes."""
    found = []
    for columns in _widths(_columns(plan)):
        each = boxes.narrowed(_columns(plan) // columns)
        if _same_tensors(each, boxes):
            found.append(Tail(True, columns, each.output_bytes, each.load_bytes, kept_rows(plan)))
    return tuple(found)


def _same_tensors(one: Boxes, other: Boxes) -> bool:
    """Whether the same tensors have boxes."""
    pairs = (*zip(one.loads, other.loads, strict=True), *zip(one.outputs, other.outputs, strict=True))
    return all((a is None) == (b is None) for a, b in pairs)


def _columns(plan: EpiloguePlan) -> int:
    """Columns of a piece: 128 bytes of the widest full tensor, 64 at most."""
    sizes = [store.dtype.bytes for store in plan.stores]
    sizes += [load.dtype.bytes for load in plan.loads if load.broadcast.m and load.broadcast.n and load.operand >= 0]
    return 64 if max(sizes, default=4) <= 2 else 32
