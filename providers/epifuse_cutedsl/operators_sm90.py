# SPDX-License-Identifier: Apache-2.0
"""``Sm90GemmOperator``: the Hopper kernel as an operator. It takes what tensor copies can move and refuses the rest."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from epifuse.arguments import GemmArguments
from epifuse.errors import UnsupportedError
from epifuse.fusion.plan import EpiloguePlan
from epifuse.metadata import BLASDesignMetadata
from epifuse.runtime.tensormap import CODE
from epifuse.target import TargetSm
from epifuse_cutedsl.compile import Kernel
from epifuse_cutedsl.configs.sm90 import WARPGROUP, Sm90Config, configurations
from epifuse_cutedsl.fuse.fragment import KernelFacts
from epifuse_cutedsl.fuse.params import wanted_run
from epifuse_cutedsl.gemm_operator import GemmOperator, Kinds, Product
from epifuse_cutedsl.sm90_launch import Sm90Launch, operands
from epifuse_cutedsl.support import refusal
from epifuse_cutedsl.tma_operands import tma_operand


def refusal_of_operands(args: GemmArguments) -> str | None:
    """Why the Hopper kernel does not multiply these operands; None where it does."""
    a, b, accumulator = args.A.traits.dtype.name, args.B.traits.dtype.name, args.accumulator_type.name
    if (a, b, accumulator) not in Sm90GemmOperator.products:
        return f"The Hopper kernel multiplies float16 or bfloat16 into float32, not {a} and {b} into {accumulator}"
    for name, traits, k_last in (("A", args.A.traits, True), ("B", args.B.traits, False)):
        found = tma_operand(traits, k_last=k_last)
        if isinstance(found, str):
            return f"Tensor copies cannot move {name}: {found}"
    return None


class Sm90GemmOperator(GemmOperator):
    """The Hopper kernel: tensor copies and ``wgmma``, persistent, for 16-bit operands.

    Not in any list until its configurations are ranked: ``CuTeDSLProvider.register(Sm90GemmOperator)`` puts them,
    without a predicted time, behind the portable kernel's.
    """

    designed_for_min_cc = 90
    architecture = "sm90"
    title = "Hopper kernel"
    targets = (TargetSm("90a"),)
    groups = (1, 8)
    products = (("float16", "float16", "float32"), ("bfloat16", "bfloat16", "float32"))
    main_codes = (CODE, CODE, *"iiiiiiiii")
    """Struct codes of the tensor maps of A and B and of ``kernels.sm90.kernel.NUMBERS``."""
    scratch_numbers = 4 * 128
    """A line for each of 4 warps, for a piece of 64 rows and up to 128 columns."""
    most_tiles = 2**31 - 1 - 2**16
    """So that the number behind the last tile, some grids on, is still an int32."""
    launch_class = Sm90Launch

    __slots__ = ()

    @classmethod
    def _refusal(cls, args: GemmArguments, target: TargetSm | None) -> UnsupportedError | str | None:
        return refusal(args, target) or refusal_of_operands(args)

    @classmethod
    def _configurations(cls, product: Product, cc: int, args: GemmArguments | None) -> Iterable[Sm90Config]:
        return configurations(cc, cls.scratch_bytes(args))

    @classmethod
    def _smem_bytes(cls, config: Sm90Config, args: GemmArguments) -> int:
        return config.smem_bytes(cls.scratch_bytes(args))

    @classmethod
    def _design(cls, config: Sm90Config, group: int) -> BLASDesignMetadata:
        tile, cluster = (config.tile_m, config.tile_n, config.tile_k), (config.cluster, 1, 1)
        return BLASDesignMetadata(tile_shape=tile, cluster_shape=cluster, num_smem_stages=config.stages, group=group)

    @classmethod
    def _main_kinds(cls, args: GemmArguments) -> tuple[Any, ...]:
        return args.A.traits.dtype, *(operand.major for operand in operands(args))

    def _facts(self, plan: EpiloguePlan, kinds: Kinds, cc: int) -> KernelFacts:
        config, traits = self.config, kinds.traits
        shape = config.stage_shape(traits.axis, wanted_run(plan, traits))
        return KernelFacts(*config.epilogue_tile, WARPGROUP, cc, shape.run, shape.runs, shape.lanes)

    def _kernel(self, kinds: Kinds, epilogue: Any) -> Kernel:
        from epifuse_cutedsl.kernels.sm90.kernel import Sm90Gemm  # noqa: PLC0415 - imports the DSL

        return Sm90Gemm(self.config, *kinds.main, epilogue)
