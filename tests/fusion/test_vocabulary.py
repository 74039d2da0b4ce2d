# SPDX-License-Identifier: Apache-2.0
"""The table: its rows, how calls bind to them, and how they are found by torch's names."""

import builtins
import math
import operator
import pickle

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from epifuse.errors import Place
from epifuse.fusion import vocabulary
from epifuse.fusion.ir.graph import GraphBuilder
from epifuse.fusion.ir.node import Kind
from epifuse.fusion.vocabulary import table
from epifuse.fusion.vocabulary.table import CostClass, Level, Operation, Parameter, Result, Role

PRIMITIVES = [
    "add",
    "sub",
    "mul",
    "div",
    "neg",
    "minimum",
    "maximum",
    "multiply_add",
    "abs",
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
    "floor",
    "where",
    "less",
    "less_equal",
    "greater",
    "greater_equal",
    "equal",
    "not_equal",
    "cast",
    "even_columns",
    "odd_columns",
]
COMPOSITES = [
    "pow",
    "sign",
    "clamp",
    "identity",
    "relu",
    "leaky_relu",
    "relu6",
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
    "expm1",
    "log1p",
]
REDUCTIONS = ["sum", "max", "min", "mean", "amax", "amin"]
GATED = ["glu", "reglu", "geglu", "swiglu"]


def names(level: Level) -> list[str]:
    return sorted(row.name for row in vocabulary.rows(level))


def test_every_operation_stands_at_its_level() -> None:
    assert names(Level.PRIMITIVE) == sorted(PRIMITIVES)
    assert names(Level.COMPOSITE) == sorted(COMPOSITES)
    assert names(Level.REDUCTION) == sorted(REDUCTIONS)
    assert names(Level.GATED) == sorted(GATED)


def test_only_composites_and_gated_rows_have_a_body() -> None:
    for row in vocabulary.rows():
        assert (row.body is not None) == (row.level in (Level.COMPOSITE, Level.GATED)), row.name


def test_every_row_says_what_it_is() -> None:
    for row in vocabulary.rows():
        assert row.summary, row.name
        assert row.__doc__ == f"{row.signature}\n\n{row.summary}"
        assert row.accuracy.ulp <= 4 or row.level is not Level.PRIMITIVE, row.name


def test_primitives_state_the_unit_they_keep_busy() -> None:
    special = {row.name for row in vocabulary.rows(Level.PRIMITIVE) if row.cost is CostClass.SPECIAL}
    assert special == set(
        ["div", "exp", "exp2", "log", "log2", "sqrt", "rsqrt", "reciprocal", "sin", "cos", "tanh", "erf", "ndtr"]
    )
    free = {row.name for row in vocabulary.rows(Level.PRIMITIVE) if row.cost is CostClass.FREE}
    assert free == {"neg", "abs", "even_columns", "odd_columns"}


def test_commutative_rows() -> None:
    found = {row.name for row in vocabulary.rows() if row.commutative}
    assert found == {"add", "mul", "minimum", "maximum", "equal", "not_equal"}


def primitives_of(name: str, **attributes: object) -> list[str]:
    """The primitives that the body of a row comes down to, shared ones counted once."""
    builder = GraphBuilder()
    row = vocabulary.lookup(name)
    operands = [builder.value(builder.load(p.name)) for p in row.parameters if p.role is Role.OPERAND]

    class Expanding(type(operands[0])):  # type: ignore[misc]
        def emit(self, operation: Operation, inputs: tuple[object, ...], attributes: dict[str, object]) -> object:
            if operation.body is not None:
                return operation.body(*inputs, **attributes)
            found = super().emit(operation, inputs, attributes)
            return Expanding(found.builder, found.index, found.place)

    assert row.body is not None
    row.body(*(Expanding(v.builder, v.index, v.place) for v in operands), **attributes)
    return [node.op for node in builder.nodes if node.kind is Kind.COMPUTE]


@pytest.mark.parametrize("name", [*COMPOSITES, *GATED])
def test_bodies_come_down_to_primitives_alone(name: str) -> None:
    if name == "clamp":
        return
    found = primitives_of(name, **({"exponent": 2.2} if name == "pow" else {}))
    assert set(found) <= set(PRIMITIVES)


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("relu", 0), ("leaky_relu", 0), ("hardswish", 0), ("hardsigmoid", 0), ("squared_relu", 0), ("sign", 0),
        ("expm1", 1), ("elu", 1), ("selu", 1), ("celu", 2), ("gelu", 1), ("tanhshrink", 1), ("softsign", 1),
        ("sigmoid", 2), ("silu", 2), ("quick_gelu", 2), ("mish", 2), ("log1p", 2), ("logsigmoid", 2), ("softplus", 3),
        ("glu", 2), ("swiglu", 2), ("geglu", 1), ("reglu", 0),
    ],
)  # fmt: skip
def test_how_many_special_functions_an_activation_costs(name: str, count: int) -> None:
    """celu and softplus count the reciprocal of a parameter, which is a number beforehand unless it is a tensor."""
    special = [op for op in primitives_of(name) if vocabulary.lookup(op).cost is CostClass.SPECIAL]
    assert len(special) == count, special


def test_names_are_taken_once() -> None:
    with pytest.raises(ValueError, match="'relu' stands in the vocabulary already"):
        table.register(vocabulary.lookup("relu"))


def test_rows_pickle_by_name() -> None:
    row = vocabulary.lookup("gelu")
    assert pickle.loads(pickle.dumps(row)) is row
    assert repr(row) == "<operation gelu(x, approximate='none')>"


# ---- calls ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "signature"),
    [
        ("relu", "relu(x)"),
        ("leaky_relu", "leaky_relu(x, negative_slope=0.01)"),
        ("elu", "elu(x, alpha=1.0)"),
        ("celu", "celu(x, alpha=1.0)"),
        ("softplus", "softplus(x, beta=1.0, threshold=20.0)"),
        ("hardtanh", "hardtanh(x, min_val=-1.0, max_val=1.0)"),
        ("gelu", "gelu(x, approximate='none')"),
        ("clamp", "clamp(x, min=None, max=None)"),
        ("pow", "pow(x, exponent)"),
        ("where", "where(condition, a, b)"),
        ("multiply_add", "multiply_add(a, b, c)"),
        ("sum", "sum(x, dim=None, keepdim=None)"),
        ("cast", "cast(x, dtype)"),
    ],
)
def test_signatures_have_torchs_names_and_defaults(name: str, signature: str) -> None:
    assert vocabulary.lookup(name).signature == signature


@pytest.mark.parametrize(
    ("name", "args", "kwargs", "message"),
    [
        ("relu", (), {}, "argument 'x' is missing"),
        ("relu", (1, 2), {}, "takes 1 arguments, 2 were given"),
        ("relu", (1,), {"inplace": True}, "has no argument 'inplace'"),
        ("gelu", (1,), {"approximate": "sigmoid"}, "approximate must be one of 'none', 'tanh', not 'sigmoid'"),
        ("leaky_relu", (1, 0.1), {"negative_slope": 0.1}, "argument 'negative_slope' is given twice"),
        ("maximum", (1,), {}, "argument 'b' is missing"),
        ("sum", (1,), {"keepdim": 3}, "keepdim must be one of None, False, True"),
        ("clamp", (1,), {}, "needs min or max"),
    ],
)
def test_wrong_calls_say_what_is_wrong(
    name: str, args: tuple[object, ...], kwargs: dict[str, object], message: str
) -> None:
    with pytest.raises(TypeError, match=message):
        vocabulary.lookup(name)(*args, **kwargs)


def test_numbers_are_operands_and_strings_flags() -> None:
    roles = {p.name: p.role for row in vocabulary.rows() for p in row.parameters}
    assert {n for n, r in roles.items() if r is Role.FLAG} == {"approximate", "keepdim"}
    assert {n for n, r in roles.items() if r is Role.NUMBER} == {"exponent"}
    assert {n for n, r in roles.items() if r is Role.OPTIONAL} == {"min", "max"}
    assert {n for n, r in roles.items() if r is Role.DIMENSIONS} == {"dim"}
    assert {n for n, r in roles.items() if r is Role.DTYPE} == {"dtype"}


def test_a_symbolic_operand_becomes_a_node() -> None:
    builder = GraphBuilder()
    x = builder.value(builder.accum(), Place(1, 0, 1, "x"))
    value = vocabulary.lookup("gelu")(x, approximate="tanh")
    node = builder.nodes[value.index]
    assert (node.kind, node.op, node.inputs, node.attributes) == (
        Kind.COMPUTE, "gelu", (x.index,), (("approximate", "tanh"),),
    )  # fmt: skip
    folded = builder.nodes[vocabulary.lookup("sum")(x, dim=(0, 1)).index]
    assert (folded.kind, folded.attribute("dim"), folded.attribute("keepdim")) == (Kind.REDUCE, (0, 1), None)


# ---- torch's names ----------------------------------------------------------------------------------------------


def test_every_torch_name_exists_and_means_one_row() -> None:
    seen: dict[str, str] = {}
    for row in vocabulary.rows():
        for dotted in row.torch_names:
            assert vocabulary._resolve(dotted) is not None, dotted
            assert seen.setdefault(dotted, row.name) == row.name
    assert len(seen) > 120


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (torch.relu, "relu"), (F.relu, "relu"), (torch.Tensor.relu, "relu"), (F.gelu, "gelu"), (F.silu, "silu"),
        (torch.special.expit, "sigmoid"), (torch.maximum, "maximum"), (torch.sum, "sum"), (torch.amax, "amax"),
        (torch.clamp, "clamp"), (torch.clip, "clamp"), (operator.add, "add"), (operator.pow, "pow"),
        (builtins.max, "max"), (builtins.sum, "sum"), (builtins.abs, "abs"), (torch.where, "where"), (math.exp, "exp"),
        (F.softplus, "softplus"), (F.mish, "mish"), (torch.lt, "less"), (torch.true_divide, "div"), (F.elu, "elu"),
    ],
)  # fmt: skip
def test_torch_callables_are_known(function: object, name: str) -> None:
    assert vocabulary.from_torch(function) is vocabulary.lookup(name)


def test_rows_are_found_as_themselves_and_strangers_are_not() -> None:
    assert vocabulary.from_torch(vocabulary.lookup("relu")) is vocabulary.lookup("relu")
    for stranger in (torch.fft.fft, F.glu, print, object(), None, 3.0, np.exp):
        assert vocabulary.from_torch(stranger) is None


def test_methods_are_known_by_name() -> None:
    for method, name in {"relu": "relu", "to": "cast", "lt": "less", "clip": "clamp", "mean": "mean"}.items():
        row = vocabulary.from_method(method)
        assert row is not None
        assert row.name == name
        assert hasattr(torch.Tensor, method)
    assert vocabulary.from_method("softmax") is None


@pytest.mark.parametrize(
    ("wrong", "right"), [("gelluu", "gelu"), ("Relu", "relu"), ("swish", "hardswish"), ("expit_", "sigmoid"),
                         ("maximun", "maximum"), ("softpluss", "softplus"), ("zzzzzz", None)],
)  # fmt: skip
def test_suggestions(wrong: str, right: str | None) -> None:
    assert vocabulary.nearest(wrong) == right


def test_the_document_has_a_line_for_every_row() -> None:
    lines = vocabulary.markdown().splitlines()
    assert len(lines) == 2 + len(list(vocabulary.rows()))
    assert all(line.count("|") - line.count("\\|") == 6 for line in lines)
    (line,) = [line for line in lines if line.startswith("| `softplus(")]
    assert "8 ulp" in line
    assert "`torch.nn.functional.softplus`" in line


def test_a_row_that_comes_later_is_found_at_once() -> None:
    row = Operation(
        "twice", Level.COMPOSITE, (Parameter("x"),), "2 x.", lambda x: x * 2, lambda x: x * 2, lambda x: x + x,
        torch_names=("torch.isfinite", "Tensor.isfinite"), result=Result.SAME,
    )  # fmt: skip
    assert vocabulary.from_torch(torch.isfinite) is None
    table.register(row)
    try:
        assert vocabulary.from_torch(torch.isfinite) is row
        assert vocabulary.from_method("isfinite") is row
        assert vocabulary.nearest("twicee") == "twice"
        assert "`twice(x)`" in vocabulary.markdown()
    finally:
        table.unregister("twice")
    assert vocabulary.from_torch(torch.isfinite) is None
    vocabulary.clear()
    assert vocabulary.from_torch(torch.relu) is vocabulary.lookup("relu")
