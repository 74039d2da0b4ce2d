# SPDX-License-Identifier: Apache-2.0
"""``evaluate`` on plans written by hand, so that nothing but the plan can have an influence."""

import math
import pickle
import subprocess
import sys
import weakref
from pathlib import Path

import pytest
import torch

from epifuse import dtypes
from epifuse.dtypes import DType
from epifuse.fusion.ir.node import Broadcast, Literal
from epifuse.fusion.plan import (
    Access,
    EpiloguePlan,
    Facts,
    PlanCompute,
    PlanConstant,
    PlanLoad,
    PlanReduce,
    PlanStore,
    Rounding,
)
from epifuse_cpu import evaluate as module
from epifuse_cpu.evaluate import evaluate

ROOT = Path(__file__).resolve().parents[2]
F32, F16, I32 = dtypes.FLOAT32, dtypes.FLOAT16, dtypes.INT32
FULL = Broadcast.BATCH_MATRIX
FACTS = Facts(0, 0, 0, 0, 0, 0, False)


def accum_load(slot: int = 0, dtype: DType = F32) -> PlanLoad:
    return PlanLoad(slot, Access.ACCUM, -1, FULL, dtype, I32 if dtype is I32 else F32)


def load(slot: int, operand: int, broadcast: Broadcast, dtype: DType = F32, to: DType = F32, **kw: object) -> PlanLoad:
    access = kw.pop("access", Access.MEMORY)
    return PlanLoad(slot, access, operand, broadcast, dtype, to, **kw)  # type: ignore[arg-type]


def compute(slot: int, primitive: str, *operands: int, dtype: DType = F32, **kw: object) -> PlanCompute:
    kw.setdefault("operand_dtype", dtype)
    return PlanCompute(slot, primitive, operands, compute_dtype=dtype, broadcast=FULL, **kw)  # type: ignore[arg-type]


def store(slot: int, destination: int = 0, dtype: DType = F32, **kw: object) -> PlanStore:
    return PlanStore(slot, destination, dtype, Rounding.NEAREST_EVEN, **kw)  # type: ignore[arg-type]


def fold(slot: int, combine: str, axes: tuple[bool, bool, bool], destination: int, dtype: DType = F32) -> PlanReduce:
    return PlanReduce(slot, combine, axes, F32, destination, dtype, Rounding.NEAREST_EVEN)


def plan(*parts: object, accumulator: DType = F32) -> EpiloguePlan:
    def of(kind: type) -> tuple:  # type: ignore[type-arg]
        return tuple(p for p in parts if isinstance(p, kind))

    return EpiloguePlan(
        accumulator, of(PlanLoad), of(PlanConstant), of(PlanCompute), of(PlanReduce), of(PlanStore), FACTS
    )


AFFINE = plan(
    accum_load(),
    load(1, 0, Broadcast.ROW),
    load(2, 1, Broadcast.SCALAR, access=Access.ARGUMENT),
    PlanConstant(3, Literal.of(0.0), F32),
    compute(4, "multiply_add", 0, 2, 1),
    compute(5, "maximum", 4, 3),
    store(5, 0, F16),
    fold(5, "sum", (False, False, True), 1),
)
"""relu(accum * alpha + bias), and its sum over n."""


def numbers(*shape: int) -> torch.Tensor:
    return torch.arange(math.prod(shape), dtype=torch.float32).reshape(shape) - 7


def test_a_plan_by_hand() -> None:
    accum, bias = numbers(2, 3, 5), torch.arange(5.0)
    d, s = evaluate(AFFINE, accum, [bias, 0.5])
    expected = (accum * 0.5 + bias).relu()
    assert d.dtype == torch.float16
    assert torch.equal(d, expected.half())
    assert s.shape == (2, 3, 1)
    assert torch.equal(s[..., 0], expected.sum(2))


def test_a_pickled_plan_in_a_process_that_never_sees_the_function(tmp_path: Path) -> None:
    accum, bias = numbers(1, 4, 5), torch.arange(5.0)
    (tmp_path / "plan").write_bytes(pickle.dumps((AFFINE, accum, [bias, 0.5])))
    script = (
        "import pickle, sys\n"
        "from epifuse_cpu.evaluate import evaluate\n"
        "from epifuse.fusion import frontend\n"
        "def refuse(*a, **k): raise AssertionError('the provider parsed a function')\n"
        "frontend.parse = refuse\n"
        f"found = evaluate(*pickle.load(open({str(tmp_path / 'plan')!r}, 'rb')))\n"
        f"pickle.dump(found, open({str(tmp_path / 'found')!r}, 'wb'))\n"
    )
    subprocess.run(
        [sys.executable, "-c", script], check=True, env={"PYTHONPATH": f"{ROOT / 'src'}:{ROOT / 'providers'}"}
    )
    found = pickle.loads((tmp_path / "found").read_bytes())
    for there, here in zip(found, evaluate(AFFINE, accum, [bias, 0.5]), strict=True):
        assert torch.equal(there, here)


@pytest.mark.parametrize(
    ("broadcast", "shapes"),
    [
        (Broadcast.SCALAR, [(), (1,), (1, 1), (1, 1, 1)]),
        (Broadcast.ROW, [(5,), (1, 5), (1, 1, 5)]),
        (Broadcast.COLUMN, [(3,), (3, 1), (1, 3, 1)]),
        (Broadcast.MATRIX, [(3, 5), (1, 3, 5)]),
        (Broadcast.BATCH, [(2, 1, 1)]),
        (Broadcast.BATCH_ROW, [(2, 1, 5)]),
        (Broadcast.BATCH_COLUMN, [(2, 3, 1)]),
        (Broadcast.BATCH_MATRIX, [(2, 3, 5)]),
    ],
    ids=lambda value: value.name if isinstance(value, Broadcast) else None,
)
def test_operands_in_every_shape(broadcast: Broadcast, shapes: list[tuple[int, ...]]) -> None:
    accum = torch.zeros(2, 3, 5)
    adds = plan(accum_load(), load(1, 0, broadcast), compute(2, "add", 0, 1), store(2))
    for shape in shapes:
        x = numbers(*shape)
        expected = x.reshape(3, 1) if shape == (3,) else x
        (found,) = evaluate(adds, accum, [x])
        assert torch.equal(found, expected.expand(2, 3, 5))
        if x.numel() > 1:
            strided = torch.stack([x, torch.full_like(x, math.nan)], -1)[..., 0]
            assert torch.equal(evaluate(adds, accum, [strided])[0], found)


@pytest.mark.parametrize(("broadcast", "view"), [(Broadcast.ROW, (1, 5)), (Broadcast.COLUMN, (3, 1))])
def test_expanded_operands(broadcast: Broadcast, view: tuple[int, int]) -> None:
    adds = plan(accum_load(), load(1, 0, broadcast), compute(2, "add", 0, 1), store(2))
    x = numbers(*view)
    for expanded in (x.expand(3, 5), x.expand(2, 3, 5)):
        assert torch.equal(evaluate(adds, torch.zeros(2, 3, 5), [expanded])[0], expanded.expand(2, 3, 5))


def test_a_square_problem_keeps_rows_and_columns_apart() -> None:
    x = numbers(4)
    row = plan(accum_load(), load(1, 0, Broadcast.ROW), compute(2, "add", 0, 1), store(2))
    column = plan(accum_load(), load(1, 0, Broadcast.COLUMN), compute(2, "add", 0, 1), store(2))
    zeros = torch.zeros(1, 4, 4)
    assert torch.equal(evaluate(row, zeros, [x])[0][0], x.expand(4, 4))
    assert torch.equal(evaluate(column, zeros, [x[:, None]])[0][0], x[:, None].expand(4, 4))


@pytest.mark.parametrize("dtype", [d for d in dtypes.TABLE if d.name not in ("float64", "int64")], ids=str)
def test_operands_of_every_dtype_are_widened(dtype: DType) -> None:
    values = torch.tensor([0.0, 1.0, 3.0, 16.0, 100.0]).clamp(0, 1 if dtype is dtypes.BOOL else 100).to(dtype.torch)
    adds = plan(accum_load(), load(1, 0, Broadcast.ROW, dtype), compute(2, "add", 0, 1), store(2))
    (found,) = evaluate(adds, torch.full((1, 2, 5), 0.25), [values])
    assert torch.equal(found[0], (values.to(torch.float32) + 0.25).expand(2, 5))


@pytest.mark.parametrize("value", [0.1, 1 / 3, 16777217, 2**62 + 2**38 + 1, 10**30, -0.0, math.inf, 70000.0])
def test_numbers_are_rounded_once_to_the_compute_dtype(value: float) -> None:
    fill = plan(accum_load(), load(1, 0, Broadcast.SCALAR, access=Access.ARGUMENT), store(1))
    (found,) = evaluate(fill, torch.zeros(1, 2, 3), [value])
    carrier = torch.tensor(value if isinstance(value, float) else float(value), dtype=torch.float64)
    expected = carrier.to(torch.float32) if value != 2**62 + 2**38 + 1 else torch.tensor(2.0**62 + 2.0**39)
    assert found.shape == (1, 2, 3)
    assert torch.equal(found, expected.expand(1, 2, 3))
    assert torch.equal(found.signbit(), expected.signbit().expand(1, 2, 3))


def test_an_alpha_beyond_half_precision() -> None:
    scale = plan(
        accum_load(dtype=F16),
        load(1, 0, Broadcast.SCALAR, access=Access.ARGUMENT),
        compute(2, "mul", 0, 1),
        store(2, 0, F16),
        accumulator=F16,
    )
    (found,) = evaluate(scale, torch.full((1, 1, 1), 2.0**-10).half(), [70000.0])
    assert found.item() == torch.tensor(70000.0 * 2.0**-10).half().item()


def test_integers_stay_integers_and_conditions_select() -> None:
    relu = plan(
        accum_load(dtype=I32),
        PlanConstant(1, Literal.of(0), I32),
        PlanConstant(2, Literal.of(16777217), I32),
        compute(3, "less", 0, 1, dtype=dtypes.BOOL, operand_dtype=I32),
        compute(4, "where", 3, 1, 0, dtype=I32),
        compute(5, "add", 4, 2, dtype=I32),
        compute(6, "cast", 4, attributes=(("dtype", F32),), operand_dtype=I32),
        store(5, 0, I32),
        store(5, 1, dtypes.INT8),
        store(6, 2, F16),
        accumulator=I32,
    )
    accum = torch.tensor([-5, 0, 7, 2**31 - 1], dtype=torch.int32).reshape(1, 2, 2)
    d, narrow, half = evaluate(relu, accum, [])
    wrapped = [16777217, 16777217, 16777224, 2**31 - 1 + 16777217 - 2**32]
    assert d.flatten().tolist() == wrapped
    assert narrow.flatten().tolist() == [127, 127, 127, -128]
    assert half.flatten().tolist() == [0, 0, 7, math.inf]


def test_gated_columns() -> None:
    gate = plan(
        accum_load(),
        load(1, 0, Broadcast.ROW, halved=True),
        compute(2, "even_columns", 0, halved=True),
        compute(3, "odd_columns", 0, halved=True),
        compute(4, "mul", 2, 3, halved=True),
        compute(5, "add", 4, 1, halved=True),
        store(5, 0, halved=True),
        store(0, 1),
        fold(0, "max", (True, True, True), 2),
    )
    accum, bias = numbers(1, 3, 8), numbers(4) * 100
    gated, whole, top = evaluate(gate, accum, [bias])
    assert torch.equal(gated, accum[..., 0::2] * accum[..., 1::2] + bias)
    assert torch.equal(whole, accum)
    assert top.tolist() == [[[16.0]]]


@pytest.mark.parametrize("axes", [(a, b, c) for a in (0, 1) for b in (0, 1) for c in (0, 1) if a or b or c])
@pytest.mark.parametrize("combine", ["sum", "max", "min", "mean"])
def test_reductions(combine: str, axes: tuple[int, int, int]) -> None:
    accum = torch.randint(-50, 50, (3, 7, 11), generator=torch.Generator().manual_seed(0)).to(torch.float32)
    accum[1, 2, 3] = math.nan
    axes_flags = (bool(axes[0]), bool(axes[1]), bool(axes[2]))
    dims = [axis for axis in range(3) if axes[axis]]
    folds = {"sum": torch.sum, "max": torch.amax, "min": torch.amin, "mean": torch.mean}
    (found,) = evaluate(plan(accum_load(), fold(0, combine, axes_flags, 0)), accum, [])
    expected = folds[combine](accum.to(torch.float64), dims, keepdim=True).to(torch.float32)
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
    assert found.isnan().any()


def test_sums_see_more_than_float32() -> None:
    accum = torch.full((1, 1, 4097), 1.0)
    accum[..., 0] = 2.0**24
    (found,) = evaluate(plan(accum_load(), fold(0, "sum", (True, True, True), 0)), accum, [])
    assert found.item() == 2.0**24 + 4096
    integers = torch.full((1, 3, 2), 2**31 - 1, dtype=torch.int32)
    parts = [accum_load(dtype=I32), fold(0, "sum", (True, True, True), 0, dtypes.INT64)]
    parts += [fold(0, "sum", (True, True, True), 1, I32), fold(0, "mean", (True, True, True), 2, I32)]
    wide, narrow, mean = evaluate(plan(*parts, accumulator=I32), integers, [])
    assert wide.item() == 6 * (2**31 - 1)
    assert narrow.item() == 2**31 - 1
    assert mean.item() == 2**31 - 1


@pytest.mark.parametrize("shape", [(1, 0, 4), (1, 4, 0), (0, 4, 4)])
def test_reductions_of_nothing_are_identities(shape: tuple[int, int, int]) -> None:
    names = ["sum", "max", "min", "mean"]
    floats = [fold(0, name, (True, True, True), i) for i, name in enumerate(names)]
    found = evaluate(plan(accum_load(), *floats, store(0, 4)), torch.empty(shape), [])
    assert [x.item() for x in found[:3]] == [0.0, -math.inf, math.inf]
    assert found[3].isnan().all()
    assert found[4].shape == shape
    whole = [fold(0, name, (True, True, True), i, dtypes.INT8) for i, name in enumerate(names)]
    found = evaluate(plan(accum_load(dtype=I32), *whole, accumulator=I32), torch.empty(shape, dtype=torch.int32), [])
    assert [x.item() for x in found] == [0, -128, 127, 0]
    rows = evaluate(plan(accum_load(), fold(0, "max", (False, False, True), 0)), torch.empty(shape), [])
    assert rows[0].shape == (shape[0], shape[1], 1)
    assert (rows[0] == -math.inf).all()


@pytest.mark.parametrize("size", [1, 2, 5])
def test_a_sum_of_negative_zeros_is_zero_as_torchs_is(size: int) -> None:
    accum = torch.full((1, 1, size), -0.0)
    folds = [fold(0, name, (False, False, True), i) for i, name in enumerate(("sum", "mean", "max"))]
    total, mean, largest = evaluate(plan(accum_load(), *folds), accum, [])
    assert not total.signbit().any()
    assert not mean.signbit().any()
    assert largest.signbit().all()


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 8, 9, 31, 33, 64, 100])
def test_a_fold_takes_every_position_once(size: int) -> None:
    accum = torch.exp2(torch.arange(size) % 50.0).reshape(1, 1, size)
    (found,) = evaluate(plan(accum_load(), fold(0, "sum", (False, False, True), 0)), accum, [])
    assert found.item() == torch.tensor(sum(int(v) for v in accum.flatten().tolist()), dtype=torch.float64).float()


def test_sums_do_not_depend_on_threads_or_strides() -> None:
    accum = torch.randn(1, 257, 1031, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    double = PlanLoad(0, Access.ACCUM, -1, FULL, dtypes.FLOAT64, dtypes.FLOAT64)
    total = plan(double, fold(0, "sum", (True, True, True), 0, dtypes.FLOAT64), accumulator=dtypes.FLOAT64)
    (whole,) = evaluate(total, accum, [])
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        assert torch.equal(evaluate(total, accum, [])[0], whole)
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(evaluate(total, accum.transpose(1, 2).contiguous().transpose(1, 2), [])[0], whole)
    assert whole.item() == pytest.approx(math.fsum(accum.flatten().tolist()), abs=1e-9)


def test_outputs_share_no_memory_with_operands() -> None:
    passes_through = plan(accum_load(), load(1, 0, FULL), store(1), store(0, 1))
    accum, c = numbers(1, 2, 3), numbers(1, 2, 3)
    d, again = evaluate(passes_through, accum, [c])
    c.fill_(math.nan)
    accum.fill_(math.nan)
    assert torch.equal(d, numbers(1, 2, 3))
    assert torch.equal(again, numbers(1, 2, 3))


def test_slots_are_freed_after_their_last_use(monkeypatch: pytest.MonkeyPatch) -> None:
    alive: list[weakref.ref[torch.Tensor]] = []
    peak = 0
    real = module.emit

    def counted(*args: object) -> torch.Tensor:
        nonlocal peak
        result = real(*args)  # type: ignore[arg-type]
        alive.append(weakref.ref(result))
        peak = max(peak, sum(ref() is not None for ref in alive))
        return result

    monkeypatch.setattr(module, "emit", counted)
    chain = [compute(i, "add", i - 1, 0) for i in range(1, 40)]
    (found,) = evaluate(plan(accum_load(), *chain, store(39)), torch.ones(1, 2, 2), [])
    assert (found == 40).all()
    assert peak <= 3


def test_a_value_may_be_stored_and_used_again_unrounded() -> None:
    both = plan(
        accum_load(),
        PlanConstant(1, Literal.of(2048.0), F32),
        compute(2, "sub", 0, 1),
        store(0, 0, F16),
        store(2, 1, F16),
    )
    d, f = evaluate(both, torch.full((1, 1, 1), 2049.0), [])
    assert (d.item(), f.item()) == (2048.0, 1.0)
