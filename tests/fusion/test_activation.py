# SPDX-License-Identifier: Apache-2.0
"""The vocabulary as callables: on torch tensors with gradients, on numpy arrays, on numbers."""

import inspect
import math
import pydoc
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from epifuse.fusion import activation, vocabulary
from epifuse.fusion.vocabulary import table
from epifuse.fusion.vocabulary.table import Level, Operation, Role

UNARY = [row for row in vocabulary.rows() if len([p for p in row.parameters if p.default is ...]) == 1]
UNARY = [row for row in UNARY if row.level in (Level.PRIMITIVE, Level.COMPOSITE)]
POSITIVE = {"log", "log2", "sqrt", "rsqrt", "log1p", "reciprocal"}
# what else a row needs, by name
INPUTS: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "clamp": ([-0.5, 0.75], {}),
    "cast": ([], {"dtype": "float32"}),
    "pow": ([], {"exponent": 2.2}),
}
BINARY = [
    "add",
    "sub",
    "mul",
    "div",
    "minimum",
    "maximum",
    "less",
    "less_equal",
    "greater",
    "greater_equal",
    "equal",
    "not_equal",
]


def values(name: str) -> torch.Tensor:
    x = torch.linspace(-4, 4, 41, dtype=torch.float64) + 0.0123
    return x.abs() if name in POSITIVE | {"pow"} else x


def numbers(row: Operation) -> list[tuple[list[Any], dict[str, Any]]]:
    """Ways to call a row besides its first operand."""
    given = INPUTS.get(row.name, ([], {}))
    flags = [p for p in row.parameters if p.role is Role.FLAG]
    return [given, *((given[0], {flag.name: choice}) for flag in flags for choice in flag.choices)]


def test_the_module_has_the_table_and_nothing_else() -> None:
    names = sorted(row.name for row in vocabulary.rows())
    assert activation.__all__ == names
    assert dir(activation) == names
    for name in names:
        assert getattr(activation, name) is vocabulary.lookup(name)
    with pytest.raises(AttributeError, match="no operation 'torch'"):
        activation.torch  # noqa: B018 - the look-up is the test


def test_a_later_row_can_be_imported_at_once() -> None:
    body = vocabulary.lookup("relu").on_torch
    table.register(Operation("fresh", Level.COMPOSITE, (table.Parameter("x"),), "Fresh.", body, body, body))
    try:
        from epifuse.fusion.activation import fresh  # noqa: PLC0415 - exists only now

        assert fresh(torch.tensor([-1.0, 2.0])).tolist() == [0.0, 2.0]
        assert "fresh" in dir(activation)
    finally:
        table.unregister("fresh")


def test_help_shows_the_call_and_what_it_means() -> None:
    text = pydoc.render_doc(activation.softplus, renderer=pydoc.plaintext)
    assert "softplus(x, beta=1.0, threshold=20.0)" in text
    assert "log(1 + exp(beta x)) / beta" in text
    assert "epilogue" in pydoc.render_doc(activation, renderer=pydoc.plaintext)
    assert inspect.getdoc(activation.gelu) == activation.gelu.__doc__


def test_star_import_in_a_fresh_process() -> None:
    code = "from epifuse.fusion.activation import *\nassert relu(-2) == 0 and max([1.0, 3.0]) == 3.0"
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": "src"}, timeout=120)


# ---- numpy and numbers ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", UNARY, ids=lambda row: row.name)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_numpy_agrees_with_torch(row: Operation, dtype: type) -> None:
    x = values(row.name).reshape(1, 41).repeat(2, 1).numpy().astype(dtype)
    for args, kwargs in numbers(row):
        found = row(x, *args, **kwargs)
        wanted = row(torch.from_numpy(x), *args, **kwargs).numpy()
        assert isinstance(found, np.ndarray)
        if row.name != "cast":
            assert found.dtype == dtype
        np.testing.assert_allclose(found, wanted, rtol=2e-6 if dtype is np.float32 else 1e-13, atol=5e-7)


@pytest.mark.parametrize("name", BINARY)
def test_two_operands_on_arrays_tensors_and_numbers(name: str) -> None:
    row = vocabulary.lookup(name)
    a = np.float32([[1, 2, -3], [4, -5, 0.5]])
    b = np.float32([1, -2, 0.25])
    wanted = row.on_numpy(a, b)
    np.testing.assert_array_equal(row(torch.from_numpy(a), torch.from_numpy(b)).numpy(), wanted)
    assert wanted.dtype in (np.float32, np.bool_)
    for number in (2, -0.5):
        with_number = row(torch.from_numpy(a), number)
        assert with_number.dtype in (torch.float32, torch.bool)
        np.testing.assert_array_equal(with_number.numpy(), row(a, number))
        np.testing.assert_array_equal(row(number, torch.from_numpy(a)).numpy(), row(number, a))
    assert row(2.0, 3.0) == row.on_torch(torch.tensor(2.0, dtype=torch.float64), 3.0).item()
    assert isinstance(row(2.0, 3.0), float | bool)


@pytest.mark.parametrize("row", UNARY, ids=lambda row: row.name)
def test_numbers_give_numbers(row: Operation) -> None:
    if row.name.endswith("_columns"):
        return
    for args, kwargs in numbers(row):
        found = row(0.75, *args, **kwargs)
        assert type(found) is float
        assert found == pytest.approx(row(torch.tensor(0.75, dtype=torch.float64), *args, **kwargs).item(), rel=1e-7)


def test_integers_on_numpy_and_python() -> None:
    x = np.int32([-3, 0, 4])
    for name, wanted in {"relu": [0, 0, 4], "square": [9, 0, 16], "sign": [-1, 0, 1], "abs": [3, 0, 4]}.items():
        found = vocabulary.lookup(name)(x)
        assert (found.dtype, found.tolist()) == (np.int32, wanted)
    assert activation.relu(-3) == 0
    assert type(activation.relu(-3)) is int
    assert activation.div(1, 4) == 0.25
    assert activation.reciprocal(np.int32([2, 4])).tolist() == [0.5, 0.25]
    assert activation.pow(2, 10) == 1024
    assert activation.floor(np.int32([3])).dtype == np.int32


@pytest.mark.filterwarnings("error")
def test_numpy_is_silent_at_the_ends() -> None:
    x = np.float32([-1e4, 1e4, np.inf, -np.inf, np.nan, 0.0])
    for row in UNARY:
        for args, kwargs in numbers(row):
            row(x, *args, **kwargs)
    assert activation.sigmoid(np.float32(-1e4)) == 0.0
    assert activation.tanh(-1e4) == -1.0
    assert activation.silu(-1e4) == 0.0
    assert activation.div(1.0, 0.0) == math.inf
    assert activation.log(0.0) == -math.inf


def test_where_and_minimum_with_numbers_keep_the_dtype() -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float64, torch.int32):
        x = torch.tensor([-1, 2], dtype=dtype)
        assert activation.where(x > 0, x, 0).dtype == dtype
        assert activation.where(activation.greater(x, 0), 1, x).tolist() == [-1, 1]
        assert activation.maximum(x, 0).dtype == dtype
        assert activation.maximum(0, x).tolist() == [0, 2]
        assert activation.minimum(torch.tensor(3, dtype=dtype), 1).dtype == dtype
    assert activation.where(True, 2.0, 3.0) == 2.0
    nan = torch.tensor([math.nan, 1.0])
    assert activation.maximum(nan, 2.0)[0].isnan()
    assert activation.minimum(2.0, nan)[0].isnan()
    assert activation.relu(nan)[0].isnan()


def test_parameters_may_be_tensors() -> None:
    x = torch.tensor([[-2.0, 1.0], [-4.0, 3.0]])
    slope = torch.tensor([[0.5], [0.25]])
    assert activation.leaky_relu(x, slope).tolist() == [[-1.0, 1.0], [-1.0, 3.0]]
    assert activation.leaky_relu(x.numpy(), slope.numpy()).tolist() == [[-1.0, 1.0], [-1.0, 3.0]]
    assert activation.clamp(x, max=slope).tolist() == [[-2.0, 0.5], [-4.0, 0.25]]
    torch.testing.assert_close(activation.softplus(x, beta=torch.tensor(2.0)), F.softplus(x, 2.0))


def test_cast_rounds_once_and_saturates() -> None:
    tie = torch.tensor([1.0 + 2.0**-11 + 2.0**-40], dtype=torch.float64)  # by way of float32 it would round to 1
    assert activation.cast(tie, torch.float16).item() == 1.0 + 2.0**-10
    assert activation.cast(tie.numpy(), "float16").item() == 1.0 + 2.0**-10
    big = torch.tensor([1e4, -math.inf, math.nan])
    assert activation.cast(big, torch.int8).tolist() == [127, -128, 0]
    eight = activation.cast(big, torch.float8_e4m3fn)
    assert eight.dtype == torch.float8_e4m3fn
    assert eight.float()[:2].tolist() == [448.0, -448.0]
    assert eight.float()[2].isnan()
    assert activation.cast(0.1, "bfloat16") == 0.10009765625
    assert activation.cast(torch.tensor([2.5, 3.5]), torch.int32).tolist() == [2, 4]


# ---- reductions and gates ---------------------------------------------------------------------------------------

FOLDS = {"sum": torch.sum, "mean": torch.mean, "max": torch.amax, "min": torch.amin,
         "amax": torch.amax, "amin": torch.amin}  # fmt: skip


@pytest.mark.parametrize("name", FOLDS)
@pytest.mark.parametrize("dim", [0, 1, 2, -1, (0, 2), [1, 2], (-1, -2), (0, 1, 2)])
@pytest.mark.parametrize("keepdim", [None, False, True])
def test_reductions_over_dimensions(name: str, dim: Any, keepdim: bool | None) -> None:
    x = torch.randn(2, 5, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    row = vocabulary.lookup(name)
    wanted = FOLDS[name](x, dim, keepdim=bool(keepdim))
    assert torch.equal(row(x, dim, keepdim), wanted)
    found = row(x.numpy(), dim=dim, keepdim=keepdim)
    assert found.shape == tuple(wanted.shape)
    np.testing.assert_allclose(found, wanted.numpy(), rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("name", FOLDS)
def test_reductions_of_everything(name: str) -> None:
    x = torch.tensor([[1.0, 5.0, -2.0], [0.5, 2.0, 8.0]])
    wanted = FOLDS[name](x, (0, 1))
    assert torch.equal(vocabulary.lookup(name)(x), wanted)
    assert vocabulary.lookup(name)(x.numpy()) == pytest.approx(wanted.item())
    assert vocabulary.lookup(name)(x, keepdim=True).shape == (1, 1)
    assert vocabulary.lookup(name)(torch.tensor([1.0, math.nan])).isnan()
    whole = vocabulary.lookup(name)(torch.tensor([[1, 2], [3, 6]], dtype=torch.int32))
    assert whole.is_floating_point() == (name == "mean")
    assert whole.item() == {"sum": 12, "mean": 3.0, "max": 6, "amax": 6, "min": 1, "amin": 1}[name]


def test_gates_take_pairs_of_adjacent_columns() -> None:
    x = torch.randn(3, 10, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    gate, up = x[:, 0::2], x[:, 1::2]
    wanted = {
        "glu": torch.sigmoid(gate) * up, "reglu": torch.relu(gate) * up, "geglu": F.gelu(gate) * up,
        "swiglu": F.silu(gate) * up,
    }  # fmt: skip
    for name, value in wanted.items():
        row = vocabulary.lookup(name)
        torch.testing.assert_close(row(x), value, rtol=1e-13, atol=1e-15)
        np.testing.assert_allclose(row(x.numpy()), value.numpy(), rtol=1e-13, atol=1e-15)
        assert row(x).shape == (3, 5)
    tanh_form = F.gelu(gate, approximate="tanh") * up
    torch.testing.assert_close(activation.geglu(x, approximate="tanh"), tanh_form, rtol=1e-13, atol=1e-15)
    assert (tanh_form != wanted["geglu"]).any()


# ---- derivatives ------------------------------------------------------------------------------------------------

WITH_DERIVATIVE = [
    "relu",
    "relu6",
    "leaky_relu",
    "elu",
    "selu",
    "celu",
    "sigmoid",
    "hardsigmoid",
    "logsigmoid",
    "silu",
    "hardswish",
    "gelu",
    "quick_gelu",
    "softplus",
    "softsign",
    "mish",
    "tanhshrink",
    "hardtanh",
    "square",
    "squared_relu",
    "exp",
    "exp2",
    "log",
    "log2",
    "sqrt",
    "rsqrt",
    "reciprocal",
    "sin",
    "cos",
    "tanh",
    "erf",
    "ndtr",
    "abs",
    "neg",
    "sign",
    "floor",
    "expm1",
    "log1p",
    "pow",
    "identity",
    "add",
    "sub",
    "mul",
    "div",
    "multiply_add",
]


def test_which_rows_have_a_derivative() -> None:
    assert {row.name for row in vocabulary.rows() if row.derivative is not None} == set(WITH_DERIVATIVE)


@pytest.mark.parametrize("name", [n for n in WITH_DERIVATIVE if n not in ("add", "sub", "mul", "div", "multiply_add")])
def test_derivatives_are_those_of_autograd_and_of_differences(name: str) -> None:
    row = vocabulary.lookup(name)
    assert row.derivative is not None
    parameters: list[tuple[float, ...]] = [()]
    parameters += {"leaky_relu": [(0.3,)], "elu": [(0.7,)], "celu": [(1.5,)], "softplus": [(2.0, 5.0)],
                   "hardtanh": [(-0.5, 2.0)]}.get(name, [])  # fmt: skip
    attributes: list[dict[str, Any]] = [{}]
    if name == "pow":
        attributes = [{"exponent": e} for e in (0, 1, 2, 3, -1, 0.5, 2.2)]
    elif name == "gelu":
        attributes = [{"approximate": "none"}, {"approximate": "tanh"}]
    sixth = name in ("hardsigmoid", "hardswish")  # torch's own slope has 1/6 in float32, also for float64
    for given in parameters:
        for flags in attributes:
            x = values(name).requires_grad_()
            (slope,) = torch.autograd.grad(row.on_torch(x, *given, **flags).sum(), x)
            found = row.derivative(x.detach(), *given, **flags)
            assert found.dtype == torch.float64
            torch.testing.assert_close(found, slope, rtol=1e-7 if sixth else 1e-11, atol=1e-13)
            step = 1e-6
            plain = x.detach()
            above, below = row.on_torch(plain + step, *given, **flags), row.on_torch(plain - step, *given, **flags)
            torch.testing.assert_close((above - below) / (2 * step), found, rtol=2e-6, atol=2e-7)
            # the body has the same slope
            if row.body is not None:
                y = values(name).requires_grad_()
                (through,) = torch.autograd.grad(row.body(y, *given, **flags).sum(), y)
                torch.testing.assert_close(through, slope, rtol=1e-6 if sixth else 1e-7, atol=1e-9)


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "multiply_add"])
def test_derivatives_by_the_first_operand(name: str) -> None:
    row = vocabulary.lookup(name)
    operands = [torch.tensor([1.5, -2.0], dtype=torch.float64), torch.tensor([0.5, 3.0], dtype=torch.float64)]
    operands += [torch.tensor([4.0, 1.0], dtype=torch.float64)] * (len(row.parameters) - 2)
    first = operands[0].clone().requires_grad_()
    (slope,) = torch.autograd.grad(row(first, *operands[1:]).sum(), first)
    assert row.derivative is not None
    torch.testing.assert_close(row.derivative(*operands), slope)
