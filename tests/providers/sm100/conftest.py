# SPDX-License-Identifier: Apache-2.0
"""``blackwell``: a GEMM with an epilogue on the emulated Blackwell kernel, beside the CPU provider's results."""

from types import SimpleNamespace

import pytest
import torch

import epifuse as ops
from epifuse_cpu.evaluate import evaluate
from epifuse_cpu.gemm import accumulate
from epifuse_cutedsl.configs.sm100 import Sm100Config, with_stages
from epifuse_cutedsl.operators_sm100 import Sm100GemmOperator
from epifuse_cutedsl.sm100_launch import routes

EXACT = {"rtol": 0, "atol": 0, "equal_nan": True}
BIAS_RELU = "def epi(accum, bias): D = relu(accum + bias); return D"


def placed(values: torch.Tensor, major: str) -> torch.Tensor:
    """A copy whose last ('row') or last but one ('column') axis has stride 1 and whose other strides are multiples of
    16 bytes, with NaN (127 for integers) between and around the elements."""
    turned = values if major == "row" else values.mT
    *lead, rows, columns = turned.shape
    step = 16 // values.element_size()
    pitch = (columns // step + 2) * step
    other = float("nan") if values.dtype.is_floating_point else 127
    room = torch.full((*lead, rows + 2, pitch), other).to(values.dtype)
    view = room[..., 1 : rows + 1, step : step + columns]
    view.copy_(turned)
    return view if major == "row" else view.mT


def integers(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    """Small integers; in uint8 large ones too, whose highest bit is set."""
    generator = torch.Generator().manual_seed(seed + sum(shape))
    found = torch.randint(-3, 4, shape, generator=generator)
    return (found % 256).to(dtype) if dtype == torch.uint8 else found.to(dtype)


def arguments(
    size, text=BIAS_RELU, majors="kk", batches=0, dtype=torch.bfloat16, b_dtype=None, accumulator=torch.float32,
    share_b=False, **operands,
):  # fmt: skip
    """Arguments of integers: ``majors`` of A and B are letters k or m; ``share_b``: one B serves all batches."""
    m, n, k = size
    lead = (batches,) if batches else ()
    a = placed(integers(*lead, m, k, dtype=dtype), "row" if majors[0] == "k" else "column")
    b = integers(*(() if share_b else lead), k, n, dtype=b_dtype or dtype, seed=1)
    b = placed(b, "column" if majors[1] == "k" else "row")
    b = b.expand(*lead, k, n) if share_b else b
    if not operands:
        operands = {"bias": integers(n), "D": placed(torch.full((*lead, m, n), float("nan")), "row")}
    out = torch.empty(*lead, m, n, dtype=accumulator)
    return ops.GemmArguments(a, b, out, accumulator, ops.EpilogueArguments(text, **operands))


def configured(args, tile=(128, 128), ctas=1, cluster=None, dynamic=False):
    """The configuration of a tile, CTAs that multiply together, and a cluster, with as many stages as fit."""
    a, b = (route.operand for route in routes(args))
    cluster = cluster or (ctas, 1)
    config = Sm100Config(*tile, ctas, *cluster, args.A.traits.dtype.bytes, a.major == "k", b.major == "k", dynamic)
    found = with_stages(config, 100, Sm100GemmOperator.scratch_bytes(args), Sm100GemmOperator.tails(args))
    assert found is not None
    return found


def differing(got, want):
    """The first few elements that are not the same, NaN being the same as NaN."""
    same = torch.isclose(got.double(), want.double(), **EXACT)
    return [(index, got[tuple(index)].item(), want[tuple(index)].item()) for index in (~same).nonzero()[:4].tolist()]


def written_around(tensor):
    """How many elements of the memory around a tensor that ``placed`` made are no longer NaN."""
    room = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())
    if not tensor.dtype.is_floating_point or room.numel() == tensor.numel() or tensor.numel() == 0:
        return 0
    inside = torch.zeros(room.numel(), dtype=torch.bool).as_strided(
        tensor.shape, tensor.stride(), tensor.storage_offset()
    )
    inside.fill_(True)
    everything = torch.empty(0, dtype=torch.bool).set_(inside.untyped_storage())
    return int((~everything & ~room.isnan()).sum())


def launch(args, tile=(128, 128), ctas=1, cluster=None, group=1, seed=0, sm_count=None, dynamic=False):
    """Run; the operator."""
    with ops.emulator.device("100a", seed=seed, sm_count=sm_count):
        operator = Sm100GemmOperator.operator_of(args, configured(args, tile, ctas, cluster, dynamic), group)
        assert operator.supports(args)
        operator.run(args)
    return operator


def run(args, *where, **how):
    """``launch``, and compare every output bit for bit; the operator."""
    m, n, _, _ = args.problem_size
    accum = accumulate(args.A.view, args.B.view, args.accumulator_type).reshape(-1, m, n)
    loads = [load.clone() if isinstance(load, torch.Tensor) else load for load in args.loads]
    want = evaluate(args.plan, accum, loads)
    operator = launch(args, *where, **how)
    for name, got, expected in zip(args.bound.names.stores, args.outputs, want, strict=True):
        assert not written_around(got), name
        difference = differing(got, expected.reshape(got.shape).to(got.dtype))
        assert not difference, f"{name}: {difference}"
    return operator


@pytest.fixture
def blackwell() -> SimpleNamespace:
    """The functions of this file."""
    return SimpleNamespace(
        placed=placed, integers=integers, arguments=arguments, configured=configured, launch=launch, run=run
    )
