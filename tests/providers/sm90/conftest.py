# SPDX-License-Identifier: Apache-2.0
"""``hopper``: a GEMM with an epilogue on the emulated Hopper kernel, beside the CPU provider's results."""

import itertools
from types import SimpleNamespace

import pytest
import torch

import epifuse as ops
from epifuse_cpu.evaluate import evaluate
from epifuse_cpu.gemm import accumulate
from epifuse_cutedsl.configs.sm90 import STAGED, configurations
from epifuse_cutedsl.configs.sm90_products import KINDS
from epifuse_cutedsl.operators_sm90 import Sm90GemmOperator, product_of

BIAS_RELU = "def epi(accum, bias): D = relu(accum + bias); return D"


def placed(values: torch.Tensor, major: str) -> torch.Tensor:
    """A copy whose last ('row') or last but one ('column') axis has stride 1 and whose other strides are multiples of
    16 bytes, with NaN (integers: 77) between and around the elements."""
    turned = values if major == "row" else values.mT
    *lead, rows, columns = turned.shape
    step = 16 // values.element_size()
    pitch = (columns // step + 2) * step
    filling = float("nan") if values.dtype.is_floating_point else 77
    room = torch.full((*lead, rows + 2, pitch), filling, dtype=values.dtype)
    view = room[..., 1 : rows + 1, step : step + columns]
    view.copy_(turned)
    return view if major == "row" else view.mT


def integers(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    """Small integers."""
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randint(-3, 4, shape, generator=generator).to(dtype)


def nothing(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """An output of NaN, or what an integer has for it, with room around that a tensor copy must leave alone."""
    empty = torch.zeros(shape) if dtype.is_floating_point else torch.full(shape, 77)
    view = placed(empty.to(dtype), "row")
    return view.fill_(float("nan")) if dtype.is_floating_point else view


def arguments(size, text=BIAS_RELU, majors="kk", batches=0, dtype=torch.bfloat16, share_b=False, **operands):
    """Arguments of integers: ``majors`` of A and B are letters k or m; ``share_b``: one B serves all batches."""
    m, n, k = size
    lead = (batches,) if batches else ()
    a = placed(integers(*lead, m, k, dtype=dtype), "row" if majors[0] == "k" else "column")
    b = placed(integers(*(() if share_b else lead), k, n, dtype=dtype, seed=1), "column" if majors[1] == "k" else "row")
    b = b.expand(*lead, k, n) if share_b else b
    if not operands:
        operands = {"bias": integers(n), "D": torch.full((*lead, m, n), float("nan"))}
    return ops.GemmArguments(a, b, torch.empty(*lead, m, n), torch.float32, ops.EpilogueArguments(text, **operands))


def operator_of(args, mode, tile, group=1, depth=None, cluster=1, split=1, k_bytes=128, swapped=False):
    """The Hopper operator of a mode ("cooperative", "pingpong") and tile for the device that is emulated; K tiles of
    ``k_bytes``."""
    shared = cluster if isinstance(cluster, tuple) else (cluster, 1)
    scratch, tails, kind = Sm90GemmOperator.scratch_bytes(args), Sm90GemmOperator.tails(args), KINDS[product_of(args)]
    tails = STAGED if swapped else tails
    short = "mn" if swapped else ""
    for config in itertools.chain.from_iterable(
        configurations(90, scratch, tails, kind=kind, swapped=side) for side in short or [""]
    ):
        found = (config.tile_m, config.tile_n, config.cluster, config.cluster_n, config.pingpong, config.split)
        if found == (*tile, *shared, mode == "pingpong", split) and config.tile_k * config.element_bytes == k_bytes:
            if depth not in (None, config.depth):
                continue
            return Sm90GemmOperator.operator_of(args, config, group)
    raise AssertionError(f"no {mode} configuration of {tile}")


def run(
    args,
    mode="cooperative",
    tile=(128, 128),
    group=1,
    depth=None,
    cluster=1,
    split=1,
    k_bytes=128,
    seed=0,
    sm_count=None,
    swapped=False,
):
    """Run, and compare every output bit for bit; the operator."""
    m, n, _, _ = args.problem_size
    accum = accumulate(args.A.view, args.B.view, args.accumulator_type).reshape(-1, m, n)
    loads = [load.clone() if isinstance(load, torch.Tensor) else load for load in args.loads]
    want = evaluate(args.plan, accum, loads)
    with ops.emulator.device("90a", seed=seed, sm_count=sm_count):
        operator = operator_of(args, mode, tile, group, depth, cluster, split, k_bytes, swapped)
        operator.run(args)
    for name, got, expected in zip(args.bound.names.stores, args.outputs, want, strict=True):
        exact = {"rtol": 0, "atol": 0, "equal_nan": True}
        torch.testing.assert_close(
            got, expected.reshape(got.shape).to(got.dtype), msg=lambda text, n=name: f"{n}: {text}", **exact
        )
    return operator


@pytest.fixture
def hopper() -> SimpleNamespace:
    """The functions of this file."""
    return SimpleNamespace(
        placed=placed, nothing=nothing, integers=integers, arguments=arguments, operator_of=operator_of, run=run
    )
