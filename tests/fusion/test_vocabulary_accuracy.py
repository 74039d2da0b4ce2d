# SPDX-License-Identifier: Apache-2.0
"""How accurate the bodies are: in float64 against torch, in float32 against float64 and against torch's own float32.

``Rounded`` is a value of which every primitive is computed in float64 and rounded to float32 once, which is what the
definition of the language asks of float32 arithmetic.
"""

import math
from typing import Any

import pytest
import torch

from epifuse.fusion import vocabulary
from epifuse.fusion.vocabulary.table import Level, Operation

UNARY = [
    "identity",
    "square",
    "sign",
    "expm1",
    "log1p",
    "relu",
    "relu6",
    "leaky_relu",
    "squared_relu",
    "hardtanh",
    "hardsigmoid",
    "hardswish",
    "elu",
    "selu",
    "celu",
    "sigmoid",
    "logsigmoid",
    "silu",
    "quick_gelu",
    "gelu",
    "softplus",
    "softsign",
    "mish",
    "tanhshrink",
]
EXPONENTS = (0, 1, 2, 3, 4, 5, 7, 16, 33, -1, -2, -3, -4, 0.5, -0.5, 1.5, 2.5, -1.5, 2.2, 0.3, -3.7, 1 / 3, 1025, -30.7)

CASES: list[tuple[str, dict[str, Any]]] = [(name, {}) for name in UNARY]
CASES += [("gelu", {"approximate": "tanh"})]
CASES += [("pow", {"exponent": e}) for e in EXPONENTS]

PARAMETERS: list[tuple[str, tuple[float, ...]]] = [
    ("leaky_relu", (0.2,)),
    ("leaky_relu", (-0.5,)),
    ("elu", (0.5,)),
    ("celu", (2.5,)),
    ("softplus", (2.0, 10.0)),
    ("hardtanh", (-0.25, 2.0)),
]


class Rounded:
    """A float32 tensor (or a condition) whose operations are the vocabulary's, each rounded once."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def emit(self, operation: Operation, operands: tuple[Any, ...], attributes: dict[str, Any]) -> Any:
        if operation.body is not None:
            return operation.body(*operands, **attributes)
        wide = [self._wide(operand) for operand in operands]
        result = operation.on_torch(*wide, **attributes)
        return Rounded(result if result.dtype == torch.bool else result.to(torch.float32))

    @staticmethod
    def _wide(operand: Any) -> torch.Tensor:
        value = operand.tensor if isinstance(operand, Rounded) else torch.tensor(operand, dtype=torch.float32)
        return value if value.dtype == torch.bool else value.to(torch.float64)


def _operator(name: str, swapped: bool = False) -> Any:
    def apply(self: Rounded, other: Any) -> Any:
        return self.emit(vocabulary.lookup(name), (other, self) if swapped else (self, other), {})

    return apply


for _dunder, _name in {
    "add": "add", "sub": "sub", "mul": "mul", "truediv": "div", "lt": "less", "le": "less_equal", "gt": "greater",
    "ge": "greater_equal", "eq": "equal", "ne": "not_equal",
}.items():  # fmt: skip
    setattr(Rounded, f"__{_dunder}__", _operator(_name))
    setattr(Rounded, f"__r{_dunder}__", _operator(_name, swapped=True))
Rounded.__neg__ = lambda self: self.emit(vocabulary.lookup("neg"), (self,), {})  # type: ignore[attr-defined]


def grid() -> torch.Tensor:
    """Just under 2^15 values, as torch computes so many on one thread."""
    generator = torch.Generator().manual_seed(1)
    spread = torch.randn(8000, generator=generator) * torch.logspace(-8, 3, 8000)
    pieces = [torch.linspace(-12, 12, 12001), torch.linspace(-1, 1, 6001), torch.linspace(-110, 110, 6001), spread]
    return torch.cat(pieces).to(torch.float32)


def domain(name: str, x: torch.Tensor) -> torch.Tensor:
    if name == "log1p":
        return x[x > -1]
    if name == "pow":
        return torch.cat([x[::2], (x[::2] / 8.0).clamp(-60, 60).exp2()]).abs().clamp(min=1e-30)
    return x


def unit(value: torch.Tensor) -> torch.Tensor:
    """One unit in the last place of float32 at each float64 value."""
    exponent = torch.frexp(value.abs().clamp(min=2.0**-126))[1]
    return torch.ldexp(torch.ones_like(value), exponent - 24)


def label(case: Any) -> str:
    return str(case) if not isinstance(case, dict) else ",".join(str(v) for v in case.values()) or "-"


@pytest.mark.parametrize(("name", "attributes"), CASES, ids=label)
def test_float32_bodies_are_as_accurate_as_stated_and_as_torch(name: str, attributes: dict[str, Any]) -> None:
    row = vocabulary.lookup(name)
    x = domain(name, grid())
    reference = row.on_torch(x.to(torch.float64), **attributes)
    assert row.body is not None
    ours = row.body(Rounded(x), **attributes).tensor.to(torch.float64)
    theirs = row.on_torch(x, **attributes).to(torch.float64)
    inside = reference.abs() < 2.0**127
    error, rival = (ours - reference).abs()[inside], (theirs - reference).abs()[inside]
    one = unit(reference[inside])
    assert not ours[inside].isnan().any()
    stated = torch.maximum(row.accuracy.ulp * one, torch.tensor(row.accuracy.absolute, dtype=torch.float64))
    assert (error <= stated).all(), f"{(error / one).max()} ulp"
    # twice torch's error anywhere on the grid, except where the absolute bound holds
    worst = torch.where(error <= row.accuracy.absolute, 0.0, error / one).max()
    assert worst <= 2.0 * (rival / one).max() or worst == 0, f"{worst} ulp, torch has {(rival / one).max()}"
    # in the tails both may have lost all digits of a tiny value; judged on the scale of 1/1024 they must agree as well
    one = unit(reference[inside].abs().clamp(min=2.0**-10))
    assert (error / one).max() <= 2.0 * (rival / one).max(), f"{(error / one).max()}, torch has {(rival / one).max()}"


@pytest.mark.parametrize(("name", "parameters"), PARAMETERS, ids=label)
def test_float32_bodies_with_other_parameters(name: str, parameters: tuple[float, ...]) -> None:
    row = vocabulary.lookup(name)
    x = grid()
    exact = [float(torch.tensor(p, dtype=torch.float32)) for p in parameters]
    reference = row.on_torch(x.to(torch.float64), *exact)
    assert row.body is not None
    ours = row.body(Rounded(x), *parameters).tensor.to(torch.float64)
    assert ((ours - reference).abs() <= (row.accuracy.ulp + 1.0) * unit(reference) + row.accuracy.absolute).all()
    moved = row.body(x.to(torch.float64), *(torch.tensor(p, dtype=torch.float64) for p in parameters))
    torch.testing.assert_close(moved, row.on_torch(x.to(torch.float64), *parameters), rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize(("name", "attributes"), CASES, ids=label)
def test_float64_bodies_keep_float64(name: str, attributes: dict[str, Any]) -> None:
    row = vocabulary.lookup(name)
    x = domain(name, grid()).to(torch.float64)
    reference = row.on_torch(x, **attributes)
    assert row.body is not None
    ours = row.body(x, **attributes)
    assert ours.dtype == torch.float64
    inside = reference.isfinite() & ours.isfinite()
    assert torch.equal(reference.isfinite(), ours.isfinite())
    error = (ours - reference).abs()[inside]
    absolute = 4e-15 if row.accuracy.absolute > 1e-9 else 1e-300
    relative = 4e-13 if attributes.get("exponent", 0) in (33, 1025, -30.7) else 4e-15
    assert (error <= relative * reference.abs()[inside] + absolute).all(), (error / reference.abs()[inside]).max()


SPECIAL = torch.tensor(
    [0.0, -0.0, math.inf, -math.inf, math.nan, 65504.0, -65504.0, 1e4, -1e4, 1e38, -1e38, 3.4e38, -3.4e38,
     1e-45, -1e-45, 1e-38, -1e-38, 1.0, -1.0, 20.0, 20.5, -20.5, 88.8, -88.8, -104.0, 3.0, -3.0, 6.0]
)  # fmt: skip


@pytest.mark.parametrize(("name", "attributes"), CASES, ids=label)
def test_special_values_are_torchs(name: str, attributes: dict[str, Any]) -> None:
    row = vocabulary.lookup(name)
    reference = row.on_torch(SPECIAL.to(torch.float64), **attributes).to(torch.float32)
    assert row.body is not None
    ours = row.body(Rounded(SPECIAL), **attributes).tensor
    torch.testing.assert_close(ours, reference, rtol=5e-6, atol=5e-7, equal_nan=True)
    finite = SPECIAL.isfinite()
    if name not in ("log1p", "pow"):
        assert not ours[finite].isnan().any()


@pytest.mark.parametrize(
    ("name", "attributes", "at_minus_inf", "at_inf"),
    [
        ("relu", {}, 0.0, math.inf), ("leaky_relu", {}, -math.inf, math.inf), ("sigmoid", {}, 0.0, 1.0),
        ("silu", {}, math.nan, math.inf), ("gelu", {}, math.nan, math.inf), ("mish", {}, math.nan, math.inf),
        ("gelu", {"approximate": "tanh"}, math.nan, math.inf), ("hardswish", {}, math.nan, math.inf),
        ("softplus", {}, 0.0, math.inf), ("logsigmoid", {}, -math.inf, 0.0), ("elu", {}, -1.0, math.inf),
        ("tanhshrink", {}, -math.inf, math.inf), ("softsign", {}, math.nan, math.nan), ("relu6", {}, 0.0, 6.0),
        ("hardsigmoid", {}, 0.0, 1.0), ("expm1", {}, -1.0, math.inf), ("log1p", {}, math.nan, math.inf),
    ],
    ids=label,
)  # fmt: skip
def test_what_is_documented_at_the_infinities(
    name: str, attributes: dict[str, Any], at_minus_inf: float, at_inf: float
) -> None:
    body = vocabulary.lookup(name).body
    assert body is not None
    found = body(Rounded(torch.tensor([-math.inf, math.inf, math.nan])), **attributes).tensor.tolist()
    assert found == pytest.approx([at_minus_inf, at_inf, math.nan], nan_ok=True)


@pytest.mark.parametrize("name", ["sigmoid", "silu", "gelu", "mish", "quick_gelu", "softplus"])
def test_far_below_zero_they_are_zero(name: str) -> None:
    body = vocabulary.lookup(name).body
    assert body is not None
    assert body(Rounded(torch.tensor([-1e4, -65504.0, -3e38]))).tensor.tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("name", "attributes"),
    [("relu", {}), ("relu6", {}), ("sign", {}), ("square", {}), ("squared_relu", {}), ("identity", {}),
     ("pow", {"exponent": 2}), ("pow", {"exponent": 5}), ("pow", {"exponent": 0}), ("reglu", {})],
    ids=label,
)  # fmt: skip
def test_integers_stay_integers(name: str, attributes: dict[str, Any]) -> None:
    row = vocabulary.lookup(name)
    x = torch.tensor([-7, -2, -1, 0, 1, 2, 5, 8], dtype=torch.int32)
    assert row.body is not None
    found = row.body(x, **attributes)
    assert found.dtype == torch.int32
    assert torch.equal(found, row.on_torch(x, **attributes))
    floats = row.body(x.to(torch.float64), **attributes)
    assert floats.dtype == torch.float64
    assert torch.equal(floats, found.to(torch.float64))


def test_clamp_keeps_integers_and_takes_one_bound() -> None:
    clamp = vocabulary.lookup("clamp")
    x = torch.tensor([-7, 0, 3, 9], dtype=torch.int32)
    assert clamp.body is not None
    for low, high in ((0, 5), (None, 5), (0, None), (5, 0)):
        found = clamp.body(x, low, high)
        assert found.dtype == torch.int32
        assert torch.equal(found, torch.clamp(x, low, high))
    bounds = torch.tensor([0, 1, 5, 2], dtype=torch.int32)
    assert torch.equal(clamp(x, bounds, 4), torch.tensor([0, 1, 4, 4], dtype=torch.int32))
    assert clamp(torch.tensor([math.nan]), 0, 1).isnan().all()


@pytest.mark.parametrize(("name", "attributes"), [*((n, {}) for n in ("sigmoid", "gelu", "elu", "leaky_relu")),
                                                  ("pow", {"exponent": 2.0}), ("pow", {"exponent": -2})])  # fmt: skip
def test_floats_come_of_integers_elsewhere(name: str, attributes: dict[str, Any]) -> None:
    row = vocabulary.lookup(name)
    x = torch.tensor([-2, 1, 3], dtype=torch.int32)
    assert row.body is not None
    assert row.body(x, **attributes).dtype == torch.float32
    assert row.on_torch(x, **attributes).dtype == torch.float32


def test_every_composite_is_judged_here() -> None:
    judged = {name for name, _ in CASES} | {"clamp"}
    assert judged == {row.name for row in vocabulary.rows(Level.COMPOSITE)}
