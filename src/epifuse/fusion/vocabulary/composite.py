# SPDX-License-Identifier: Apache-2.0
"""The composites: operations written in primitives, one body each for graphs, torch and numpy.

A row is one decorated function: its name, its parameters and defaults (numbers are operands, so a tensor or a run-time
scalar may stand there), its docstring as the summary, its body. To add an activation, add one here.

Bodies are chosen for a GPU: one special function (``exp``, ``log``, ``reciprocal``, ...) costs as much as
eight multiply-adds, so there are few of these. Integer literals keep integers integers. Special values are torch's:
``silu``, ``mish``, ``gelu`` and ``hardswish`` give NaN at -inf (they tend to 0 there, but -inf * 0 is NaN) and inf at
inf; none gives NaN at a finite number.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it

from epifuse.fusion.vocabulary.primitive import (
    abs,  # noqa: A004 - the vocabulary's, not Python's
    exp,
    exp2,
    greater,
    like,
    log,
    maximum,
    minimum,
    ndtr,
    plain,
    reciprocal,
    tanh,
    where,
)
from epifuse.fusion.vocabulary.table import (
    Accuracy,
    CostClass,
    Level,
    Operation,
    Parameter,
    Result,
    Role,
    register,
)


def _parameters(body: Callable[..., Any], roles: dict[str, Role], choices: dict[str, tuple[Any, ...]]) -> Any:
    for parameter in inspect.signature(body).parameters.values():
        default = ... if parameter.default is parameter.empty else parameter.default
        role = Role.FLAG if parameter.name in choices else Role.OPTIONAL if default is None else Role.OPERAND
        name = parameter.name
        yield Parameter(name, roles.get(name, role), default, choices.get(name, ()))


def _torch_of(function: Callable[..., Any] | None, body: Callable[..., Any], result: Result) -> Callable[..., Any]:
    """torch's own function where it can be called: with numbers as parameters, and floats where we take integers."""

    def on_torch(*operands: Any, **attributes: Any) -> Any:
        x, *others = operands
        if function is None or not isinstance(x, torch.Tensor) or any(isinstance(v, torch.Tensor) for v in others):
            return body(*operands, **attributes)
        if result is Result.FLOAT and not x.is_floating_point():
            x = x.to(torch.get_default_dtype())
        return function(x, *others, **attributes)

    return on_torch


def composite(
    on_torch: Callable[..., Any] | None,
    torch_names: tuple[str, ...] = (),
    *,
    level: Level = Level.COMPOSITE,
    derivative: Callable[..., Any] | None = None,
    result: Result = Result.FLOAT,
    accuracy: Accuracy = Accuracy(ulp=0.5),  # noqa: B008 - a frozen record
    cost: CostClass = CostClass.FMA,
    roles: dict[str, Role] | None = None,
    choices: dict[str, tuple[Any, ...]] | None = None,
) -> Callable[[Callable[..., Any]], Operation]:
    """Register the decorated body as a row; ``on_torch`` is torch's function of it (None: the body itself)."""

    def define(body: Callable[..., Any]) -> Operation:
        return register(
            Operation(
                name=body.__name__,
                level=level,
                parameters=tuple(_parameters(body, roles or {}, choices or {})),
                summary=inspect.cleandoc(body.__doc__ or ""),
                on_torch=_torch_of(on_torch, body, result),
                on_numpy=plain(body),
                body=body,
                derivative=derivative,
                torch_names=torch_names,
                result=result,
                accuracy=accuracy,
                cost=cost,
            )
        )

    return define


def _names(name: str, *more: str) -> tuple[str, ...]:
    """The usual places where torch keeps a function of that name."""
    return (f"torch.{name}", f"torch.nn.functional.{name}", f"Tensor.{name}", *more)


_SPECIAL = CostClass.SPECIAL
_ALU = CostClass.ALU


def _step(x: Any, above: Any, elsewhere: Any) -> Any:
    """``above`` where x > 0, ``elsewhere`` in other places, in x's dtype (numbers alone would not have one)."""
    return where(greater(x, 0), like(x, above), elsewhere)


# ---- small algebra ----------------------------------------------------------------------------------------------


@composite(
    lambda x: x, ("torch.clone", "Tensor.clone", "torch.positive", "Tensor.positive", "operator.pos"),
    derivative=lambda x: like(x, 1.0), result=Result.SAME, accuracy=Accuracy(0.0), cost=CostClass.FREE,
)  # fmt: skip
def identity(x: Any) -> Any:
    """x itself."""
    return x


@composite(torch.square, ("torch.square", "Tensor.square"), derivative=lambda x: x * 2.0, result=Result.SAME)
def square(x: Any) -> Any:
    """x * x; integers stay integers."""
    return x * x


@composite(torch.sign, ("torch.sign", "Tensor.sign"), derivative=lambda x: like(x, 0.0),
           result=Result.SAME, accuracy=Accuracy(0.0), cost=_ALU)  # fmt: skip
def sign(x: Any) -> Any:
    """-1, 0 or 1, in x's dtype; 0 for NaN, as torch."""
    # the innermost x keeps the dtype: integers alone would make an integer of a float's sign
    return where(x > 0, 1, where(x < 0, -1, where(x == 0, x, 0)))


@composite(torch.clamp, ("torch.clamp", "torch.clip", "Tensor.clamp", "Tensor.clip"),
           result=Result.SAME, accuracy=Accuracy(0.0), cost=_ALU)  # fmt: skip
def clamp(x: Any, min: Any = None, max: Any = None) -> Any:  # noqa: A002 - torch's names
    """minimum(maximum(x, min), max); one bound may be left out; NaN stays NaN."""
    if min is None and max is None:
        raise TypeError("clamp(x, min=None, max=None) needs min or max")
    above = x if min is None else maximum(x, min)
    return above if max is None else minimum(above, max)


# A polynomial q of degree 10 with x + x^2 q(x) = expm1(x) to 1.4e-18 relative on [log(3/4), log(3/2)]: good for
# float64, and in float32 its eleven multiply-adds cost less than one more special function.
_EXPM1 = (
    0.5, 0.16666666666666666, 0.04166666666666737, 0.008333333333335408, 0.0013888888888285644,
    0.00019841269835392563, 2.4801589153179525e-05, 2.7557316494312762e-06, 2.7554935605934694e-07,
    2.5073922289218118e-08, 2.1983690579574488e-09,
)  # fmt: skip
_EXPM1_LOW, _EXPM1_HIGH = math.log(0.75), math.log(1.5)


@composite(torch.expm1, ("torch.expm1", "torch.special.expm1", "Tensor.expm1", "math.expm1"), cost=_SPECIAL,
           derivative=exp, accuracy=Accuracy(4.0))  # fmt: skip
def expm1(x: Any) -> Any:
    """exp(x) - 1, accurate also next to 0 (1 special function)."""
    q = x * _EXPM1[-1] + _EXPM1[-2]
    for coefficient in _EXPM1[-3::-1]:
        q = q * x + coefficient
    # outside, exp(x) is so far from 1 that the subtraction is exact and at most doubles the error of exp
    small, large = x * x * q + x, exp(x) - 1.0
    return where(x > _EXPM1_LOW, where(x < _EXPM1_HIGH, small, large), large)


@composite(torch.log1p, ("torch.log1p", "torch.special.log1p", "Tensor.log1p", "math.log1p"), cost=_SPECIAL,
           derivative=lambda x: reciprocal(1.0 + x), accuracy=Accuracy(4.0, 6e-8))  # fmt: skip
def log1p(x: Any) -> Any:
    """log(1 + x), accurate also next to 0 (2 special functions)."""
    u = 1.0 + x
    used = u - 1.0  # exact: what of x has entered u; equal to x also at -1, inf and in the large
    return log(u) + where(used == x, like(x, 0.0), (x - used) * reciprocal(u))


def _log1p_of_fraction(x: Any) -> Any:
    """log(1 + x) for 0 <= x <= 1 with one special function: what 1 + x loses of x counts 1 / (1 + x), and 1 - x / 2 is
    near enough to that (exact at both ends, 1/8 off between)."""
    u = 1.0 + x
    return log(u) + (x - (u - 1.0)) * (1.0 - x * 0.5)


# ---- piecewise linear -------------------------------------------------------------------------------------------


@composite(torch.relu, _names("relu"), derivative=lambda x: _step(x, 1.0, 0.0),
           result=Result.SAME, accuracy=Accuracy(0.0), cost=_ALU)  # fmt: skip
def relu(x: Any) -> Any:
    """maximum(x, 0); NaN stays NaN, integers stay integers."""
    return maximum(x, 0)


@composite(F.relu6, ("torch.nn.functional.relu6",), derivative=lambda x: _step(x, 1.0, 0.0) * _step(6 - x, 1.0, 0.0),
           result=Result.SAME, accuracy=Accuracy(0.0), cost=_ALU)  # fmt: skip
def relu6(x: Any) -> Any:
    """x clamped to 0 .. 6; integers stay integers."""
    return minimum(maximum(x, 0), 6)


@composite(F.leaky_relu, ("torch.nn.functional.leaky_relu",), cost=_ALU, accuracy=Accuracy(1.0),
           derivative=lambda x, negative_slope=0.01: _step(x, 1.0, negative_slope))  # fmt: skip
def leaky_relu(x: Any, negative_slope: Any = 0.01) -> Any:
    """x where x > 0, negative_slope * x elsewhere."""
    return where(x > 0, x, x * negative_slope)


@composite(lambda x: torch.square(torch.relu(x)), derivative=lambda x: maximum(x, 0.0) * 2.0, result=Result.SAME)
def squared_relu(x: Any) -> Any:
    """maximum(x, 0) squared; integers stay integers."""
    positive = maximum(x, 0)
    return positive * positive


def _hardtanh_slope(x: Any, min_val: Any = -1.0, max_val: Any = 1.0) -> Any:
    return _step(x - min_val, 1.0, 0.0) * _step(max_val - x, 1.0, 0.0)


@composite(F.hardtanh, ("torch.nn.functional.hardtanh",), accuracy=Accuracy(0.0), cost=_ALU,
           derivative=_hardtanh_slope)  # fmt: skip
def hardtanh(x: Any, min_val: Any = -1.0, max_val: Any = 1.0) -> Any:
    """x clamped to min_val .. max_val."""
    return minimum(maximum(x, min_val), max_val)


_SIXTH = 1.0 / 6.0


@composite(F.hardsigmoid, ("torch.nn.functional.hardsigmoid",), accuracy=Accuracy(2.0),
           derivative=lambda x: _step(x + 3.0, _SIXTH, 0.0) * _step(3.0 - x, 1.0, 0.0))  # fmt: skip
def hardsigmoid(x: Any) -> Any:
    """x / 6 + 1/2 clamped to 0 .. 1."""
    return minimum(maximum(x + 3.0, 0.0), 6.0) * _SIXTH


def _hardswish_slope(x: Any) -> Any:
    return where(x < -3.0, like(x, 0.0), where(x < 3.0, x * (1.0 / 3.0) + 0.5, like(x, 1.0)))


@composite(F.hardswish, ("torch.nn.functional.hardswish",), accuracy=Accuracy(2.5), derivative=_hardswish_slope)
def hardswish(x: Any) -> Any:
    """x * hardsigmoid(x)."""
    return x * hardsigmoid(x)


# ---- exponential families ---------------------------------------------------------------------------------------


@composite(F.elu, ("torch.nn.functional.elu",), cost=_SPECIAL, accuracy=Accuracy(5.0),
           derivative=lambda x, alpha=1.0: _step(x, 1.0, exp(minimum(x, 0.0)) * alpha))  # fmt: skip
def elu(x: Any, alpha: Any = 1.0) -> Any:
    """x where x > 0, alpha * expm1(x) elsewhere (1 special function)."""
    return where(x > 0, x, expm1(x) * alpha)


_SELU_ALPHA = 1.6732632423543772848170429916717
_SELU_SCALE = 1.0507009873554804934193349852946


@composite(torch.selu, ("torch.selu", "torch.nn.functional.selu"), cost=_SPECIAL, accuracy=Accuracy(6.0),
           derivative=lambda x: _step(x, _SELU_SCALE, exp(minimum(x, 0.0)) * (_SELU_SCALE * _SELU_ALPHA)))  # fmt: skip
def selu(x: Any) -> Any:
    """elu with the self-normalising alpha, scaled (1 special function)."""
    return where(x > 0, x * _SELU_SCALE, expm1(x) * (_SELU_SCALE * _SELU_ALPHA))


@composite(torch.celu, ("torch.celu", "torch.nn.functional.celu"), cost=_SPECIAL, accuracy=Accuracy(5.0),
           derivative=lambda x, alpha=1.0: _step(x, 1.0, exp(minimum(x, 0.0) * reciprocal(alpha))))  # fmt: skip
def celu(x: Any, alpha: Any = 1.0) -> Any:
    """x where x > 0, alpha * expm1(x / alpha) elsewhere (1 special function)."""
    return where(x > 0, x, expm1(x * reciprocal(alpha)) * alpha)


def _sigmoid_slope(x: Any) -> Any:
    s = sigmoid(x)
    return s * sigmoid(-x)


@composite(torch.sigmoid, _names("sigmoid", "torch.special.expit"), cost=_SPECIAL, accuracy=Accuracy(6.0, 1.2e-38),
           derivative=_sigmoid_slope)  # fmt: skip
def sigmoid(x: Any) -> Any:
    """1 / (1 + exp(-x)); exactly 0 below -89 in float32 (2 special functions)."""
    return reciprocal(exp(-x) + 1.0)


@composite(F.logsigmoid, ("torch.nn.functional.logsigmoid",), cost=_SPECIAL, accuracy=Accuracy(8.0),
           derivative=lambda x: sigmoid(-x))  # fmt: skip
def logsigmoid(x: Any) -> Any:
    """log(sigmoid(x)) = minimum(x, 0) - log1p(exp(-|x|)) (2 special functions)."""
    return minimum(x, 0.0) - _log1p_of_fraction(exp(-abs(x)))


def _silu_slope(x: Any) -> Any:
    return sigmoid(x) * (1.0 + x * sigmoid(-x))


@composite(F.silu, ("torch.nn.functional.silu",), cost=_SPECIAL, accuracy=Accuracy(8.0, 1e-36), derivative=_silu_slope)
def silu(x: Any) -> Any:
    """x * sigmoid(x) (2 special functions)."""
    return x * sigmoid(x)


_QUICK = 1.702


def _quick_gelu_torch(x: torch.Tensor) -> torch.Tensor:
    return x * torch.sigmoid(x * _QUICK)


@composite(_quick_gelu_torch, cost=_SPECIAL, accuracy=Accuracy(8.0, 2e-7),
           derivative=lambda x: sigmoid(x * _QUICK) * (1.0 + x * _QUICK * sigmoid(x * -_QUICK)))  # fmt: skip
def quick_gelu(x: Any) -> Any:
    """x * sigmoid(1.702 x) (2 special functions)."""
    return x * sigmoid(x * _QUICK)


# The tanh formula is x (1 + tanh u) / 2 = x / (1 + exp(-2u)), u = sqrt(2 / pi) (x + 0.044715 x^3): without the
# cancellation of 1 + tanh u below zero. The power's exponent -2 log2(e) u is x (x^2 _TANH_CUBIC + _TANH_LINEAR).
_TANH_LINEAR = -2.0 * math.sqrt(2.0 / math.pi) * math.log2(math.e)
_TANH_CUBIC = 0.044715 * _TANH_LINEAR


def _gelu_slope(x: Any, approximate: str = "none") -> Any:
    if approximate == "none":
        density = exp(x * x * -0.5) * (1.0 / math.sqrt(2.0 * math.pi))
        return ndtr(x) + x * density
    exponent = _tanh_exponent(x)
    gate, rest = reciprocal(exp2(exponent) + 1.0), reciprocal(exp2(-exponent) + 1.0)
    exponent_slope = x * x * (3.0 * _TANH_CUBIC) + _TANH_LINEAR
    return gate - x * gate * rest * exponent_slope * math.log(2.0)


def _tanh_exponent(x: Any) -> Any:
    return x * (x * x * _TANH_CUBIC + _TANH_LINEAR)


@composite(F.gelu, ("torch.nn.functional.gelu",), choices={"approximate": ("none", "tanh")}, cost=_SPECIAL,
           accuracy=Accuracy(4.0, 5e-7, short_absolute=1e-6), derivative=_gelu_slope)  # fmt: skip
def gelu(x: Any, approximate: str = "none") -> Any:
    """x times the normal distribution function ('none'), or the usual formula with tanh (2 special functions)."""
    return x * (ndtr(x) if approximate == "none" else reciprocal(exp2(_tanh_exponent(x)) + 1.0))


def _softplus_slope(x: Any, beta: Any = 1.0, threshold: Any = 20.0) -> Any:
    return where(x * beta > threshold, like(x, 1.0), sigmoid(x * beta))


@composite(F.softplus, ("torch.nn.functional.softplus",), cost=_SPECIAL, accuracy=Accuracy(8.0),
           derivative=_softplus_slope)  # fmt: skip
def softplus(x: Any, beta: Any = 1.0, threshold: Any = 20.0) -> Any:
    """log(1 + exp(beta x)) / beta, and x itself where beta x > threshold (2 special functions)."""
    z = x * beta
    return where(z > threshold, x, (_log1p_of_fraction(exp(-abs(z))) + maximum(z, 0.0)) * reciprocal(beta))


def _softsign_slope(x: Any) -> Any:
    r = reciprocal(abs(x) + 1.0)
    return r * r


@composite(F.softsign, ("torch.nn.functional.softsign",), cost=_SPECIAL, accuracy=Accuracy(1.5),
           derivative=_softsign_slope)  # fmt: skip
def softsign(x: Any) -> Any:
    """x / (1 + |x|); NaN at both infinities, as torch (1 special function)."""
    return x / (abs(x) + 1.0)


def _mish_slope(x: Any) -> Any:
    t = mish_gate(x)
    return t + x * (1.0 - t * t) * sigmoid(x)


def mish_gate(x: Any) -> Any:
    """tanh(softplus(x)) = n / (n + 2) with n = e (e + 2), e = exp(x); it is 1 to the last bit beyond 20."""
    e = exp(minimum(x, 20.0))
    n = e * (e + 2.0)
    return n * reciprocal(n + 2.0)


@composite(F.mish, ("torch.nn.functional.mish",), cost=_SPECIAL, accuracy=Accuracy(8.0, 1e-36), derivative=_mish_slope)
def mish(x: Any) -> Any:
    """x * tanh(softplus(x)) (2 special functions)."""
    return x * mish_gate(x)


@composite(F.tanhshrink, ("torch.nn.functional.tanhshrink",), cost=_SPECIAL, accuracy=Accuracy(2.0, 2e-7),
           derivative=lambda x: tanh(x) * tanh(x))  # fmt: skip
def tanhshrink(x: Any) -> Any:
    """x - tanh(x) (1 special function); an absolute accuracy next to 0, as torch."""
    return x - tanh(x)
