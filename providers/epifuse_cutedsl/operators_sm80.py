# SPDX-License-Identifier: Apache-2.0
"""``Sm80GemmOperator``: the portable kernel as an operator, for every GPU from compute capability 8.0 on."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

from epifuse import dtypes
from epifuse.arguments import GemmArguments
from epifuse.errors import UnsupportedError
from epifuse.fusion.plan import EpiloguePlan
from epifuse.runtime.rounding import tf32_allowed
from epifuse.status import Status
from epifuse.target import TargetSm
from epifuse_cutedsl.compile import Kernel
from epifuse_cutedsl.configs import times_sm80
from epifuse_cutedsl.configs.sm80 import Sm80Config, configurations
from epifuse_cutedsl.fuse.facts import KernelFacts
from epifuse_cutedsl.fuse.params import wanted_run
from epifuse_cutedsl.gemm_operator import GemmOperator, Kinds, Product, target_of
from epifuse_cutedsl.operands import PRODUCTS, kind_of, kinds_now, main_traits
from epifuse_cutedsl.provider import MADE_FOR, CuTeDSLProvider
from epifuse_cutedsl.support import product_refusal, refusal


@CuTeDSLProvider.register
class Sm80GemmOperator(GemmOperator):
    """The portable kernel: ``mma.sync`` or FMA, any strides, any shape."""

    designed_for_min_cc = 80
    architecture = "sm80"
    title = "portable kernel"
    targets = (MADE_FOR["sm80"],)
    groups = (1, 4, 8)
    products = tuple(PRODUCTS)
    main_codes = tuple("qqiiiiqqqqqqiii")
    """Struct codes of ``kernels.sm80.kernel.PARAMETERS``."""
    scratch_numbers = 8 * 256
    """A line of 256 partials for each of 8 warps."""

    __slots__ = ()

    def _supports_now(self, args: GemmArguments) -> Status:
        if self.config.kind == "tf32" and not tf32_allowed():
            return Status.fail("The operator multiplies in TF32, which torch's switch does not allow now")
        return Status.success()

    @classmethod
    def _refusal(cls, args: GemmArguments, target: TargetSm | None) -> UnsupportedError | None:
        return product_refusal(args) or refusal(args, target)

    @classmethod
    def _configurations(cls, product: Product, cc: int, args: GemmArguments | None) -> Iterable[Sm80Config]:
        accumulator_bytes = dtypes.of(product[2]).bytes
        for kind in kinds_now(product)[: None if args is None else 1]:
            yield from configurations(kind, accumulator_bytes, cc, cls.scratch_bytes(args))

    @classmethod
    def _config_refusal(cls, config: Sm80Config, args: GemmArguments) -> str | None:
        kind = kind_of(args)
        if kind != config.kind and (kind, config.kind) != ("tf32", "f32"):
            return f"The operator multiplies as {config.kind}, these operands as {kind}"
        return None

    @classmethod
    def _smem_bytes(cls, config: Sm80Config, args: GemmArguments) -> int:
        return _staged_bytes(config, args.accumulator_type.bytes) + cls.scratch_bytes(args)

    @classmethod
    def _main_kinds(cls, args: GemmArguments) -> tuple[Any, ...]:
        return main_traits(args.A.traits, k_last=True), main_traits(args.B.traits, k_last=False)

    def _facts(self, plan: EpiloguePlan, kinds: Kinds, cc: int) -> KernelFacts:
        config, traits = self.config, kinds.traits
        shape = config.stage_shape(kinds.accumulator.bytes, traits.axis, wanted_run(plan, traits))
        return KernelFacts(config.tile_m, config.tile_n, config.threads, cc, shape.run, shape.runs, shape.lanes)

    def _kernel(self, kinds: Kinds, epilogue: Any) -> Kernel:
        from epifuse_cutedsl.kernels.sm80.kernel import Sm80Gemm  # noqa: PLC0415 - imports the DSL

        return Sm80Gemm(self.config, *kinds.main, kinds.accumulator, epilogue)

    def _estimate_us(self, args: GemmArguments, target_sm: TargetSm | None = None) -> float | None:
        return times_sm80.estimate_us(self.config, self.group, args, target_sm or target_of(args))


@functools.lru_cache(maxsize=512)
def _staged_bytes(config: Sm80Config, accumulator_bytes: int) -> int:
    """Shared memory of a CTA, along whichever axis its accumulators are staged."""
    return max(config.smem_bytes(accumulator_bytes, axis) for axis in "nm")
