# SPDX-License-Identifier: Apache-2.0
"""``Sm100Launch``: a launch of the Blackwell kernel, its tensor maps encoded once for the arguments' addresses."""

from __future__ import annotations

from typing import Any

import torch

from epifuse import emulator
from epifuse.arguments import GemmArguments
from epifuse.runtime import tensormap
from epifuse_cutedsl.configs.sm100 import Sm100Config
from epifuse_cutedsl.configs.sm100_products import PRODUCTS, Product
from epifuse_cutedsl.fuse.boxes import MOST_MAPS, maps_of
from epifuse_cutedsl.fuse.params import traits_of
from epifuse_cutedsl.tma_launch import TmaLaunch
from epifuse_cutedsl.tma_operands import Route, routes_of


class Sm100Launch(TmaLaunch):
    """A grid of whole clusters: one CTA for each SM, or for each tile where there are fewer; with a dynamic schedule,
    one for each tile."""

    def _layout(
        self, config: Sm100Config, group: int, args: GemmArguments
    ) -> tuple[tuple[int, int, int], list[Any], list[int]]:
        m, n, k, batches = args.problem_size
        tiles = (-(-m // (config.tile_m * config.cluster_m)), -(-n // (config.tile_n * config.cluster_n)))
        total = tiles[0] * tiles[1] * batches
        a, b = (route.operand for route in routes(args))
        maps = [bytes(tensormap.BYTES)] * (2 + MOST_MAPS)
        if total and k:
            maps[:2] = self._operand_maps(args, routes(args), (config.a.copy_box, config.b.copy_box))
        if total:
            others = maps_of(self._bound, self._compiled.kinds.boxes)
            maps[2 : 2 + len(others)] = [tensormap.encode(each, args.A.device) for each in others]
        main = [*maps, m, n, k, batches, int(a.batched), int(b.batched), *tiles, group]
        rows, columns = piece_of(config, args)
        clusters = total if config.dynamic else min(total, max(1, _sm_count(args.A.device) // config.cluster))
        return (clusters * config.cluster, 1, 1), main, [-(-m // rows), -(-n // columns)]


def piece_of(config: Sm100Config, args: GemmArguments) -> tuple[int, int]:
    """Rows and columns of what the epilogue's engine takes for a tile."""
    piece = config.piece(axis_of(args), bool(args.plan.reduces))
    return piece.rows, piece.columns


def product_of(args: GemmArguments) -> Product | None:
    """The row of the arguments' product; None where there is none."""
    return PRODUCTS.get((args.A.traits.dtype.name, args.B.traits.dtype.name, args.accumulator_type.name))


def routes(args: GemmArguments) -> tuple[Route, Route]:
    """How A and B of arguments that the operator supports reach the kernel."""
    product = product_of(args)
    assert product is not None
    return routes_of(args, product.majors, rounded=product.kind == "tf32")


def axis_of(args: GemmArguments) -> str:
    """Along which direction the epilogue's runs lie; remembered with the arguments."""
    found: str | None = args.memo.get(axis_of)
    if found is None:
        found = args.memo[axis_of] = traits_of(args.bound, args.problem_size.L).axis
    return found


def _sm_count(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).multi_processor_count)
    emulated = emulator.current()
    return 1 if emulated is None else emulated.chip.sm_count
