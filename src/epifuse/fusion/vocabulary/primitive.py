# SPDX-License-Identifier: Apache-2.0
"""The primitives: what every backend emits. Everything else of the vocabulary is written in these.

The stated errors hold for float32 and for every backend. Special values follow torch: ``minimum`` and ``maximum``
propagate NaN, ``equal`` is false on NaN, ``div`` by zero is an infinity or NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from epifuse import dtypes
from epifuse.fusion.vocabulary import exact
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
from epifuse.runtime.rounding import round_to

_EXACT = Accuracy(ulp=0.0)
_ROUNDED = Accuracy(ulp=0.5)
_CLOSE = Accuracy(ulp=2.0)


def tensors(*values: Any) -> tuple[torch.Tensor, ...]:
    """Numbers among the values as 0-dim tensors of the dtype that torch would give them beside the tensors."""
    first = next(v for v in values if isinstance(v, torch.Tensor))
    return tuple(v if isinstance(v, torch.Tensor) else _beside(first, v) for v in values)


def _beside(tensor: torch.Tensor, value: Any) -> torch.Tensor:
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value).to(tensor.device)
    number = value.item() if isinstance(value, np.generic) else value
    return torch.tensor(number, dtype=torch.result_type(tensor, number), device=tensor.device)


def lifted(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` of tensors, callable with numbers among them."""

    def on_torch(*operands: Any) -> Any:
        return function(*tensors(*operands))

    return on_torch


def plain(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` on arrays, silent about overflow and NaN; Python numbers alone give a Python number."""

    def on_numpy(*operands: Any, **attributes: Any) -> Any:
        with np.errstate(all="ignore"):
            if any(isinstance(v, np.ndarray | np.generic) for v in operands):
                return function(*operands, **attributes)
            result = function(*(_scalar(v) for v in operands), **attributes)
        return result.item() if isinstance(result, np.ndarray | np.generic) and np.ndim(result) == 0 else result

    return on_numpy


def _scalar(value: Any) -> Any:
    return np.asarray(value)[()] if isinstance(value, bool | int | float) else value


def _floating(values: Any) -> Any:
    """The array itself, or as float64 where it holds integers."""
    return values if np.issubdtype(np.asarray(values).dtype, np.floating) else np.asarray(values, np.float64)[()]


def _by_elements(function: Callable[[float], float]) -> Callable[..., Any]:
    """A function of a number on arrays, computed in float64."""
    elements = np.vectorize(function, otypes=[np.float64])

    def on_arrays(x: Any) -> Any:
        values = np.asarray(x)
        return np.asarray(elements(values) if values.size else values).astype(values.dtype)[()]

    return on_arrays


def _row(
    name: str,
    names: str,
    summary: str,
    on_torch: Callable[..., Any],
    on_numpy: Callable[..., Any],
    torch_names: tuple[str, ...],
    *,
    derivative: Callable[..., Any] | None = None,
    result: Result = Result.SAME,
    accuracy: Accuracy = _ROUNDED,
    cost: CostClass = CostClass.FMA,
    commutative: bool = False,
) -> Operation:
    return register(
        Operation(
            name=name,
            level=Level.PRIMITIVE,
            parameters=tuple(Parameter(n) for n in names.split()),
            summary=summary,
            on_torch=on_torch,
            on_numpy=plain(on_numpy),
            derivative=derivative,
            torch_names=torch_names,
            result=result,
            accuracy=accuracy,
            cost=cost,
            commutative=commutative,
        )
    )


def _special(name: str, summary: str, on_numpy: Callable[..., Any], torch_names: tuple[str, ...],
             derivative: Callable[..., Any], accuracy: Accuracy = _CLOSE) -> Operation:  # fmt: skip
    """A function of one operand on the special-function unit; floats also from integers."""
    function = getattr(torch, name)
    return _row(name, "x", summary, function, lambda x: on_numpy(_floating(x)), torch_names,
                derivative=derivative, result=Result.FLOAT, accuracy=accuracy, cost=CostClass.SPECIAL)  # fmt: skip


# ---- conditions -------------------------------------------------------------------------------------------------


def _comparison(name: str, sign: str, torch_function: Callable[..., Any], numpy_function: Callable[..., Any],
                torch_names: tuple[str, ...], commutative: bool = False) -> Operation:  # fmt: skip
    return _row(
        name, "a b", f"a {sign} b, a condition for ``where``.", lifted(torch_function), numpy_function,
        torch_names, result=Result.BOOL, accuracy=_EXACT, cost=CostClass.ALU, commutative=commutative,
    )  # fmt: skip


less: Operation = _comparison(
    "less", "<", torch.lt, np.less, ("torch.lt", "torch.less", "Tensor.lt", "Tensor.less", "operator.lt")
)
less_equal: Operation = _comparison(
    "less_equal",
    "<=",
    torch.le,
    np.less_equal,
    ("torch.le", "torch.less_equal", "Tensor.le", "Tensor.less_equal", "operator.le"),
)
greater: Operation = _comparison(
    "greater", ">", torch.gt, np.greater, ("torch.gt", "torch.greater", "Tensor.gt", "Tensor.greater", "operator.gt")
)
greater_equal: Operation = _comparison(
    "greater_equal",
    ">=",
    torch.ge,
    np.greater_equal,
    ("torch.ge", "torch.greater_equal", "Tensor.ge", "Tensor.greater_equal", "operator.ge"),
)
equal: Operation = _comparison(
    "equal", "==", torch.eq, np.equal, ("torch.eq", "Tensor.eq", "operator.eq"), commutative=True
)
not_equal: Operation = _comparison(
    "not_equal",
    "!=",
    torch.ne,
    np.not_equal,
    ("torch.ne", "torch.not_equal", "Tensor.ne", "Tensor.not_equal", "operator.ne"),
    commutative=True,
)


def _where_torch(condition: Any, a: Any, b: Any) -> torch.Tensor:
    if isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor):
        a, b = tensors(a, b)
        if not isinstance(condition, torch.Tensor):
            condition = torch.tensor(bool(condition), device=a.device)
        return torch.where(condition, a, b)
    return torch.where(condition, a, b)


where: Operation = _row(
    "where", "condition a b", "a where the condition holds, b elsewhere.", _where_torch, np.where,
    ("torch.where",), accuracy=_EXACT, cost=CostClass.ALU,
)  # fmt: skip


# ---- arithmetic -------------------------------------------------------------------------------------------------

reciprocal: Operation = _special(
    "reciprocal", "1 / x.", lambda x: 1.0 / x, ("torch.reciprocal", "Tensor.reciprocal"),
    lambda x: -reciprocal(x * x), Accuracy(ulp=1.0),
)  # fmt: skip
add: Operation = _row(
    "add", "a b", "a + b.", lifted(torch.add), np.add, ("torch.add", "Tensor.add", "operator.add"),
    derivative=lambda a, b: like(a, 1.0), commutative=True,
)  # fmt: skip
sub: Operation = _row(
    "sub", "a b", "a - b.", lifted(torch.sub), np.subtract,
    ("torch.sub", "torch.subtract", "Tensor.sub", "Tensor.subtract", "operator.sub"),
    derivative=lambda a, b: like(a, 1.0),
)  # fmt: skip
mul: Operation = _row(
    "mul", "a b", "a * b.", lifted(torch.mul), np.multiply,
    ("torch.mul", "torch.multiply", "Tensor.mul", "Tensor.multiply", "operator.mul"),
    derivative=lambda a, b: b, commutative=True,
)  # fmt: skip
div: Operation = _row(
    "div", "a b", "a / b, the true quotient, rounded correctly; floats also from integers.",
    lifted(torch.true_divide), np.true_divide,
    ("torch.div", "torch.divide", "torch.true_divide", "Tensor.div", "Tensor.divide", "Tensor.true_divide",
     "operator.truediv"),
    derivative=lambda a, b: reciprocal(b), result=Result.FLOAT, cost=CostClass.SPECIAL,
)  # fmt: skip
neg: Operation = _row(
    "neg", "x", "-x.", torch.neg, np.negative,
    ("torch.neg", "torch.negative", "Tensor.neg", "Tensor.negative", "operator.neg"),
    derivative=lambda x: like(x, -1.0), accuracy=_EXACT, cost=CostClass.FREE,
)  # fmt: skip
multiply_add: Operation = _row(
    "multiply_add", "a b c", "a * b + c with one rounding (an fma), on every backend.",
    lifted(exact.fma), exact.fma_numpy, (), derivative=lambda a, b, c: b,
)  # fmt: skip
abs: Operation = _row(  # noqa: A001 - the vocabulary's name, as torch.abs
    "abs", "x", "|x|.", torch.abs, np.abs,
    ("torch.abs", "torch.absolute", "Tensor.abs", "Tensor.absolute", "builtins.abs", "operator.abs"),
    derivative=lambda x: where(greater(x, 0), like(x, 1.0), where(less(x, 0), like(x, -1.0), like(x, 0.0))),
    accuracy=_EXACT, cost=CostClass.FREE,
)  # fmt: skip
minimum: Operation = _row(
    "minimum", "a b", "The smaller of a and b; NaN where either is NaN.", lifted(torch.minimum), np.minimum,
    ("torch.minimum", "Tensor.minimum"),
    accuracy=_EXACT, cost=CostClass.ALU, commutative=True,
)  # fmt: skip
maximum: Operation = _row(
    "maximum", "a b", "The larger of a and b; NaN where either is NaN.", lifted(torch.maximum), np.maximum,
    ("torch.maximum", "Tensor.maximum"),
    accuracy=_EXACT, cost=CostClass.ALU, commutative=True,
)  # fmt: skip
floor: Operation = _row(
    "floor", "x", "The largest integer not above x; integers stay as they are.", torch.floor,
    lambda x: np.floor(x) if np.issubdtype(np.asarray(x).dtype, np.floating) else x,
    ("torch.floor", "Tensor.floor", "math.floor"),
    derivative=lambda x: like(x, 0.0), accuracy=_EXACT, cost=CostClass.ALU,
)  # fmt: skip

# ---- special functions ------------------------------------------------------------------------------------------

exp: Operation = _special(
    "exp", "e to the x.", np.exp, ("torch.exp", "Tensor.exp", "math.exp"), lambda x: exp(x),  # noqa: PLW0108 - not yet defined
)  # fmt: skip
exp2: Operation = _special(
    "exp2", "2 to the x; exact where x is an integer.", np.exp2,
    ("torch.exp2", "torch.special.exp2", "Tensor.exp2", "math.exp2"), lambda x: exp2(x) * math.log(2.0),
    Accuracy(ulp=2.5),
)  # fmt: skip
log: Operation = _special(
    "log", "The natural logarithm; relative accuracy also next to 1.", np.log,
    ("torch.log", "Tensor.log", "math.log"), reciprocal,
)  # fmt: skip
log2: Operation = _special(
    "log2", "The logarithm to base 2; relative accuracy also next to 1.", np.log2,
    ("torch.log2", "Tensor.log2", "math.log2"), lambda x: reciprocal(x * math.log(2.0)),
)  # fmt: skip
sqrt: Operation = _special(
    "sqrt", "The square root, rounded correctly; NaN below zero.", np.sqrt,
    ("torch.sqrt", "Tensor.sqrt", "math.sqrt"), lambda x: rsqrt(x) * 0.5, _ROUNDED,
)  # fmt: skip
rsqrt: Operation = _special(
    "rsqrt", "1 / sqrt(x).", lambda x: 1.0 / np.sqrt(x), ("torch.rsqrt", "Tensor.rsqrt"),
    lambda x: rsqrt(x) * reciprocal(x) * -0.5,
)  # fmt: skip
sin: Operation = _special(
    "sin", "The sine of x radians.", np.sin, ("torch.sin", "Tensor.sin", "math.sin"),
    lambda x: cos(x),  # noqa: PLW0108 - not yet defined
)  # fmt: skip
cos: Operation = _special(
    "cos", "The cosine of x radians.", np.cos, ("torch.cos", "Tensor.cos", "math.cos"), lambda x: -sin(x),
)  # fmt: skip
tanh: Operation = _special(
    "tanh", "The hyperbolic tangent; exactly -1 and 1 far out.", np.tanh,
    ("torch.tanh", "torch.nn.functional.tanh", "Tensor.tanh", "math.tanh"), lambda x: 1.0 - tanh(x) * tanh(x),
)  # fmt: skip
erf: Operation = _special(
    "erf", "The error function.", _by_elements(math.erf),
    ("torch.erf", "torch.special.erf", "Tensor.erf", "math.erf"), lambda x: exp(-(x * x)) * (2.0 / math.sqrt(math.pi)),
)  # fmt: skip
# torch.special.ndtr is (1 + erf) / 2 and so has no digits left below -6, nor has it in float64 below -8
ndtr: Operation = _row(
    "ndtr", "x", "The standard normal distribution function; relative accuracy also far below 0.",
    lambda x: torch.special.erfc(x * -math.sqrt(0.5)) * 0.5,
    lambda x: _by_elements(lambda v: 0.5 * math.erfc(-v * math.sqrt(0.5)))(_floating(x)), ("torch.special.ndtr",),
    derivative=lambda x: exp(x * x * -0.5) * (1.0 / math.sqrt(2.0 * math.pi)),
    result=Result.FLOAT, accuracy=Accuracy(ulp=4.0), cost=CostClass.SPECIAL,
)  # fmt: skip


# ---- conversion and columns -------------------------------------------------------------------------------------


def _cast_torch(x: torch.Tensor, dtype: Any) -> torch.Tensor:
    return round_to(x, dtypes.of(dtype))


def _cast_numpy(x: Any, dtype: Any) -> Any:
    result = _cast_torch(torch.from_numpy(np.array(x)), dtype)
    if result.dtype in (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2):
        result = result.to(torch.float32)  # numpy has no such dtype: the values, rounded
    return result.numpy()[()]


cast: Operation = register(
    Operation(
        name="cast",
        level=Level.PRIMITIVE,
        parameters=(Parameter("x"), Parameter("dtype", Role.DTYPE)),
        summary="x rounded to ``dtype``, to nearest even; float8 and integers saturate (NaN becomes 0 in integers).",
        on_torch=_cast_torch,
        on_numpy=plain(_cast_numpy),
        torch_names=("Tensor.to", "Tensor.type"),
        result=Result.CAST,
        cost=CostClass.ALU,
    )
)

even_columns: Operation = _row(
    "even_columns", "x", "Columns 0, 2, 4, ...: the first of each pair of adjacent columns.",
    lambda x: x[..., 0::2], lambda x: x[..., 0::2], (), accuracy=_EXACT, cost=CostClass.FREE,
)  # fmt: skip
odd_columns: Operation = _row(
    "odd_columns", "x", "Columns 1, 3, 5, ...: the second of each pair of adjacent columns.",
    lambda x: x[..., 1::2], lambda x: x[..., 1::2], (), accuracy=_EXACT, cost=CostClass.FREE,
)  # fmt: skip


def like(x: Any, value: float) -> Any:
    """The number as a value of x's dtype and shape. No x is below itself, so x is never chosen."""
    return where(less(x, x), x, value)
