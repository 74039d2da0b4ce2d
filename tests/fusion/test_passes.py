# SPDX-License-Identifier: Apache-2.0
"""The passes: what folds and what must not, expansion, explicit conversions, rules that catch a broken rewrite."""

import dataclasses
import math
import sys
from collections.abc import Callable
from typing import Any

import pytest

from epifuse import dtypes
from epifuse.errors import IrError, OperandError
from epifuse.fusion import passes
from epifuse.fusion.frontend import parse
from epifuse.fusion.ir import infer
from epifuse.fusion.ir.graph import Graph, GraphBuilder
from epifuse.fusion.ir.node import Broadcast, Kind, Node
from epifuse.fusion.ir.verify import Stage, verify
from epifuse.fusion.passes.program import Context, Program
from epifuse.fusion.passes.rounding import rounded_literal
from epifuse.fusion.plan import Access, OperandSpec, OutputSpec
from epifuse.fusion.vocabulary import table
from epifuse.fusion.vocabulary.table import Level

# --- folding ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "primitives"),
    [
        ("accum * 1.0", []),
        ("accum * 1", []),
        ("1.0 * accum", []),
        ("accum / 1.0", []),
        ("accum - 0.0", []),
        ("accum + -0.0", []),
        ("-(-accum)", []),
        ("abs(abs(accum))", ["abs"]),
        ("cast(accum, 'float32')", []),
        ("cast(cast(accum, 'float16'), 'float16')", ["cast"]),
        ("cast(x, 'float16')", []),
        ("where(accum > 0.0, x, x)", []),
        ("accum * (2.0 * 3.0)", ["mul"]),
        ("accum * (1.0 / 3.0)", ["mul"]),
        ("identity(accum)", []),
    ],
)
def test_what_folds(bind: Callable[..., Any], body: str, primitives: list[str]) -> None:
    assert bind(f"def epi(accum, x): D = {body}; return D", x="f16 matrix").primitives == primitives


@pytest.mark.parametrize(
    ("body", "primitives"),
    [
        ("accum + 0.0", ["add"]),  # -0.0 + 0.0 is 0.0
        ("accum + 0", ["add"]),  # the integer becomes 0.0
        ("0.0 * accum", ["mul"]),  # NaN stays NaN
        ("accum * 0", ["mul"]),
        ("0.0 - accum", ["sub"]),
        ("accum - accum", ["sub"]),  # inf - inf
        ("accum / accum", ["div"]),
        ("(accum + 1.0) + 2.0", ["add", "add"]),  # no re-association
        ("(accum * 2.0) * 0.5", ["mul", "mul"]),
        ("alpha * (accum + x)", ["add", "mul"]),  # no distribution
        ("(accum + x) - x", ["add", "sub"]),
        ("accum / 3.0", ["div"]),  # not a product with a rounded reciprocal
        ("cast(accum, 'float16')", ["cast"]),
        ("cast(cast(accum, 'float16'), 'bfloat16')", ["cast", "cast"]),
        ("reciprocal(reciprocal(accum))", ["reciprocal", "reciprocal"]),
        ("log(exp(accum))", ["exp", "log"]),
        ("sqrt(accum * accum)", ["mul", "sqrt"]),
        ("accum * accum", ["mul"]),
        ("maximum(accum, 0.0)", ["maximum"]),
        ("exp(1.0) * accum", ["exp", "mul"]),  # not every backend's exp gives the same bits
    ],
)
def test_what_must_not_fold(bind: Callable[..., Any], body: str, primitives: list[str]) -> None:
    found = bind(f"def epi(accum, x, alpha): D = {body}; return D", x="f16 row", alpha="f32 argument")
    assert found.primitives == primitives


def test_integer_identities(bind: Callable[..., Any]) -> None:
    text = "def epi(accum): D = (accum + 0) * 1 - 0; return D"
    assert bind(text, "i32", out={"D": "i32"}).primitives == []
    assert bind("def epi(accum): D = accum + (2 * 3 - 7); return D", "i32").constants == [-1]


def test_constants_are_rounded_once_to_the_compute_dtype(bind: Callable[..., Any]) -> None:
    tenth = 0.100000001490116119384765625
    assert bind("def epi(accum): D = accum * 0.1; return D").constants == [tenth]
    assert bind("def epi(accum): D = accum * 0.1; return D", "f64").constants == [0.1]
    assert bind("def epi(accum): D = accum + 16777217; return D").constants == [16777216.0]
    assert bind("def epi(accum): D = accum + 16777217; return D", "i32").constants == [16777217]
    assert bind("def epi(accum): D = accum + 1e400; return D").constants == [math.inf]
    assert bind("def epi(accum): D = accum + 1e39; return D").constants == [math.inf]


def lowered_constants(build: Callable[[GraphBuilder, Any], Any], accum: str) -> list[int | float]:
    builder = GraphBuilder()
    builder.store("D", build(builder, builder.value(builder.accum())).index)
    graph = Graph(tuple(builder.nodes), (), ("D",))
    plan, _ = passes.lower(graph, dtypes.of(accum), (), (("D", OutputSpec(dtypes.FLOAT16)),))
    return [constant.literal.value for constant in plan.constants]


def test_constants_fold_in_the_compute_dtype() -> None:
    def sums(builder: GraphBuilder, accum: Any) -> Any:
        return accum * (builder.value(builder.constant(16777216.0)) + 1.0 + 1.0)

    def product(builder: GraphBuilder, accum: Any) -> Any:
        return accum + builder.value(builder.constant(2147483647)) * 2

    assert lowered_constants(sums, "f32") == [16777216.0]
    assert lowered_constants(sums, "f64") == [16777218.0]
    assert sorted(lowered_constants(product, "i32")) == [2, 2147483647]  # beyond int32: the backend says what happens
    assert lowered_constants(product, "f64") == [2147483647, 2]


@pytest.mark.parametrize(
    "value", [2**24 + 1, 2**53 + 1, 2**60 + 2**36 + 1, -(2**60 + 2**36 + 1), 2**127, 2**128, 10**400]
)
def test_integers_round_once_to_float32(value: int) -> None:
    found = rounded_literal(value, dtypes.FLOAT32).value
    if abs(value) >= 2**128 - 2**103:
        assert found == (math.inf if value > 0 else -math.inf)
        return
    unit = 2 ** max(0, abs(value).bit_length() - 24)
    low = abs(value) // unit * unit
    rest = abs(value) - low
    expected = low + unit if rest * 2 > unit or (rest * 2 == unit and low // unit % 2) else low
    assert found == (expected if value > 0 else -expected)


# --- sharing and dead code --------------------------------------------------------------------------------------------


def test_equal_values_are_computed_once(bind: Callable[..., Any]) -> None:
    text = "def epi(accum, x): D = (accum + x) * (x + accum); return D"
    assert bind(text, x="f32 row").primitives == ["add", "mul"]
    assert bind("def epi(accum): D = silu(accum); F = silu(accum); return D, F").primitives.count("mul") == 1


def test_dead_code_asks_for_nothing(bind: Callable[..., Any]) -> None:
    text = "def epi(accum, unused): t = accum + unused; D = accum * 2.0; return D"
    found = bind(text, unused="i64 row")  # int64 would be refused if anything used it
    assert found.primitives == ["mul"]
    assert found.binding.loads == ()


# --- expansion --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("accum", ["f32", "f64", "i32"])
def test_every_row_becomes_primitives(bind: Callable[..., Any], accum: str) -> None:
    primitives = {row.name for row in table.rows(Level.PRIMITIVE)}
    for row in table.rows():
        if row.level not in (Level.COMPOSITE, Level.GATED) or row.name == "pow":
            continue
        needed = [p.name for p in row.parameters if p.default is ...]
        call = f"{row.name}({', '.join(['accum', *['accum'] * (len(needed) - 1)])})"
        if row.name == "clamp":
            call = "clamp(accum, 0, 6)"
        found = bind(f"def epi(accum): D = {call}; return D", accum)
        assert set(found.primitives) <= primitives, row.name


def test_expanded_nodes_keep_the_place_of_their_operation() -> None:
    graph = parse("def epi(accum):\n    t = accum * 2.0\n    D = gelu(t)\n    return D\n")
    context = Context(infer.Typing(dtypes.FLOAT32, {}), {"D": OutputSpec(dtypes.FLOAT16)}, frozenset())
    program = Program(graph.nodes)
    for step in passes.PASSES:
        program = step.run(program, context)
        places = [node.place for node in program.nodes if node.kind is Kind.COMPUTE]
        assert all(place is not None for place in places), step.name
        assert {place.line for place in places if place} == {2, 3}


def test_an_integer_enters_an_activation_as_a_float(bind: Callable[..., Any]) -> None:
    found = bind("def epi(accum): D = hardswish(accum); return D", "i32", out={"D": "f32"})
    assert found.primitives[0] == "cast"
    assert {c.compute_dtype.short for c in found.plan.computes} == {"f32"}
    assert bind("def epi(accum): D = relu(accum); return D", "i32", out={"D": "i8"}).primitives == ["maximum"]


@pytest.mark.parametrize(
    ("exponent", "primitives"),
    [("1", []), ("2", ["mul"]), ("3", ["mul", "mul"]), ("0.5", ["sqrt"]), ("-1", ["reciprocal"])],
)
def test_powers(bind: Callable[..., Any], exponent: str, primitives: list[str]) -> None:
    assert bind(f"def epi(accum): D = accum ** {exponent}; return D").primitives == primitives


def test_a_composite_written_in_itself_is_our_mistake(bind: Callable[..., Any]) -> None:
    def again(x: Any) -> Any:
        return endless(x)

    relu = table.lookup("relu")
    endless = dataclasses.replace(relu, name="endless", body=again, torch_names=())
    table.register(endless)
    try:
        builder = GraphBuilder()
        accum = builder.accum()
        builder.store("D", builder.compute(endless, (accum,)))
        graph = Graph(tuple(builder.nodes), (), ("D",))
        with pytest.raises(IrError, match="written in itself"):
            passes.lower(graph, dtypes.FLOAT32, (), (("D", OutputSpec(dtypes.FLOAT16)),))
    finally:
        table.unregister("endless")


# --- conversions ------------------------------------------------------------------------------------------------------


def test_every_change_of_dtype_is_a_node(bind: Callable[..., Any]) -> None:
    text = "def epi(accum, mask, count): D = where(mask, accum * count, mask + count); return D"
    found = bind(text, mask="b1 matrix", count="i32 row")
    dtype_of = {load.slot: load.compute_dtype for load in found.plan.loads}
    dtype_of |= {constant.slot: constant.compute_dtype for constant in found.plan.constants}
    for compute in found.plan.computes:
        operands = [dtype_of[slot] for slot in compute.operands]
        if compute.primitive == "where":
            assert operands.pop(0) is dtypes.BOOL
        assert set(operands) == {compute.operand_dtype}
        if compute.primitive != "cast":
            assert compute.operand_dtype is compute.compute_dtype
        dtype_of[compute.slot] = compute.compute_dtype
    casts = [(c.operand_dtype.short, c.attributes[0][1].short) for c in found.plan.computes if c.primitive == "cast"]
    assert sorted(casts) == [("b1", "i32"), ("i32", "f32"), ("i32", "f32")]


def test_conditions_of_any_dtype(bind: Callable[..., Any]) -> None:
    found = bind("def epi(accum, x): D = where(x, accum, 0.0); return D", x="u8 row")
    assert found.primitives == ["not_equal", "where"]
    assert bind("def epi(accum, x): D = x; return D", x="f32 matrix", out={"D": "b1"}).primitives == ["not_equal"]
    assert bind("def epi(accum, x): D = x; return D", x="b1 matrix", out={"D": "b1"}).primitives == []
    assert bind("def epi(accum, x): D = x; return D", x="b1 matrix", out={"D": "f32"}).primitives == ["cast"]


@pytest.mark.parametrize(
    ("accum", "store", "rounding"),
    [
        ("f32", "f32", "none"),
        ("f32", "f64", "none"),
        ("f32", "f16", "nearest_even"),
        ("f32", "bf16", "nearest_even"),
        ("f32", "e4m3", "saturate"),
        ("f32", "i8", "saturate"),
        ("f32", "i64", "saturate"),
        ("f64", "f32", "nearest_even"),
        ("f64", "f64", "none"),
        ("i32", "i32", "none"),
        ("i32", "i64", "none"),
        ("i32", "i8", "saturate"),
        ("i32", "f32", "nearest_even"),
        ("i32", "f64", "none"),
        ("f16", "f16", "nearest_even"),
    ],
)
def test_stores_say_how_they_round(bind: Callable[..., Any], accum: str, store: str, rounding: str) -> None:
    (found,) = bind("def epi(accum): D = accum; return D", accum, out={"D": store}).plan.stores
    assert (found.dtype.short, found.rounding.value) == (store, rounding)


@pytest.mark.parametrize(
    ("accum", "op", "store", "expected"),
    [
        ("f32", "sum", "f32", ("sum", "f32", "none")),
        ("f32", "amax", "bf16", ("max", "f32", "nearest_even")),
        ("f32", "amin", "f32", ("min", "f32", "none")),
        ("f64", "mean", "f32", ("mean", "f64", "nearest_even")),
        ("i32", "sum", "i64", ("sum", "i64", "none")),
        ("i32", "sum", "i32", ("sum", "i64", "saturate")),
        ("i32", "max", "i32", ("max", "i32", "none")),
        ("i32", "mean", "f32", ("mean", "i64", "none")),
    ],
)
def test_reductions(bind: Callable[..., Any], accum: str, op: str, store: str, expected: tuple[str, ...]) -> None:
    text = f"def epi(accum): D = accum; s = {op}(accum, dim=1); return D, s"
    (found,) = bind(text, accum, out={"s": f"{store} over n"}).plan.reduces
    assert (found.combine, found.accumulate_dtype.short, found.rounding.value) == expected
    assert found.axes == (False, False, True)


def test_a_missing_operand_or_output_is_named() -> None:
    graph = parse("def epi(accum, x): D = accum + x; return D")
    with pytest.raises(OperandError, match="Operand 'x' is not given"):
        passes.lower(graph, dtypes.FLOAT32, (), (("D", OutputSpec(dtypes.FLOAT16)),))
    with pytest.raises(OperandError, match="Output 'D' is not given"):
        passes.lower(parse("def epi(accum): D = accum; return D"), dtypes.FLOAT32, (), ())


# --- linear time ------------------------------------------------------------------------------------------------------


def calls_while(work: Callable[[], object]) -> int:
    """How many Python functions ``work`` calls: a measure of cost without a clock."""
    count = 0

    def profile(frame: object, event: str, arg: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def chain(length: int) -> Graph:
    builder = GraphBuilder()
    x = builder.value(builder.accum())
    for step in range(length):
        x = x * 2.0 if step % 3 == 2 else x + builder.value(builder.load(f"x{step % 7}"))
    builder.store("D", x.index)
    return Graph(tuple(builder.nodes), tuple(f"x{k}" for k in range(7)), ("D",))


def test_lowering_takes_linear_time_without_recursion() -> None:
    operands = tuple((f"x{k}", OperandSpec(Access.MEMORY, dtypes.FLOAT16, Broadcast.ROW)) for k in range(7))
    outputs = (("D", OutputSpec(dtypes.FLOAT16)),)
    lower = passes.lower.__wrapped__
    small, large = (chain(n) for n in (250, 2000))
    cost = [calls_while(lambda g=g: lower(g, dtypes.FLOAT32, operands, outputs)) for g in (small, large)]
    assert cost[1] < 8.5 * cost[0]
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(200 + len(__import__("inspect").stack()))
    try:
        plan, _ = lower(large, dtypes.FLOAT32, operands, outputs)
    finally:
        sys.setrecursionlimit(limit)
    assert len(plan.computes) == 2000
    assert plan.facts.live_slots == 1


# --- the rules --------------------------------------------------------------------------------------------------------

ACCUM = Node(Kind.ACCUM)
STORE = Node(Kind.STORE, inputs=(0,), name="D")


def compute(op: str, *inputs: int) -> Node:
    return Node(Kind.COMPUTE, op, inputs)


def store(source: int, name: str = "D") -> Node:
    return Node(Kind.STORE, inputs=(source,), name=name)


@pytest.mark.parametrize(
    ("nodes", "stage", "wrong"),
    [
        ([ACCUM, compute("neg", 2), store(1)], Stage.FRONT_END, "does not stand before"),
        ([ACCUM, compute("neg", 1), store(1)], Stage.FRONT_END, "does not stand before"),
        ([ACCUM, store(0), compute("neg", 1), store(2, "E")], Stage.FRONT_END, "is a store"),
        ([ACCUM, compute("frobnicate", 0), store(1)], Stage.FRONT_END, "not in the vocabulary"),
        ([ACCUM, compute("add", 0), store(1)], Stage.FRONT_END, "takes 2 operands"),
        ([ACCUM, compute("add", 0, -1), store(1)], Stage.FRONT_END, "is absent"),
        ([ACCUM, compute("sum", 0), store(1)], Stage.FRONT_END, "reduction in a COMPUTE"),
        ([ACCUM, Node(Kind.REDUCE, "neg", (0,)), store(1)], Stage.FRONT_END, "no reduction"),
        ([ACCUM, Node(Kind.REDUCE, "sum", (0,)), compute("neg", 1), store(2)], Stage.FRONT_END, "only a store"),
        ([ACCUM, store(0), store(0)], Stage.FRONT_END, "two store nodes"),
        ([ACCUM, Node(Kind.STORE, name="D")], Stage.FRONT_END, "exactly one value"),
        ([ACCUM], Stage.FRONT_END, "without a store"),
        ([ACCUM, Node(Kind.LOAD), store(1)], Stage.FRONT_END, "no operand's name"),
        ([ACCUM, Node(Kind.CONSTANT), store(0)], Stage.FRONT_END, "no literal"),
        ([ACCUM, compute("neg", 0), store(0)], Stage.SIMPLIFIED, "nothing uses it"),
        ([ACCUM, compute("neg", 0), compute("neg", 0), compute("add", 1, 2), store(3)], Stage.SIMPLIFIED, "equal node"),
        ([ACCUM, compute("relu", 0), store(1)], Stage.EXPANDED, "no primitive"),
        ([ACCUM, compute("swiglu", 0), store(1)], Stage.EXPANDED, "no primitive"),
    ],
)
def test_rules_catch_planted_breakage(nodes: list[Node], stage: Stage, wrong: str) -> None:
    with pytest.raises(IrError, match=wrong) as caught:
        verify(nodes, stage=stage, by="test")
    assert isinstance(caught.value, AssertionError)
    assert "test left" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "dtype", "wrong"),
    [
        ("def epi(accum, x): D = accum + 1; return D", "b1", "is int32 where float32"),
        ("def epi(accum, x): D = accum + x; return D", "b1", "is bool where float32"),
        ("def epi(accum, x): D = x + x; return D", "b1", "is bool where int32"),
        ("def epi(accum, x): D = where(x, 1.0, 2.0); return D", "f32", "condition .* is float32"),
        ("def epi(accum, x): D = exp(x); return D", "i32", "is int32 where float32"),
    ],
)
def test_rules_catch_hidden_conversions(text: str, dtype: str, wrong: str) -> None:
    graph = parse(text)
    spec = OperandSpec(Access.MEMORY, dtypes.of(dtype), Broadcast.MATRIX)
    types = infer.infer(graph, dtypes.FLOAT32, {"x": spec})
    with pytest.raises(IrError, match=wrong):
        verify(graph.nodes, types, Stage.ROUNDED, "test")


def test_a_broken_pass_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def lose_a_store(program: Program, context: Context) -> Program:
        return Program(program.nodes[:-1], program.types[:-1])

    broken = [dataclasses.replace(p, run=lose_a_store) if p.name == "round" else p for p in passes.PASSES]
    monkeypatch.setattr(passes, "PASSES", tuple(broken))
    passes.clear()
    with pytest.raises(IrError, match=r"^round left"):
        passes.lower(
            parse("def epi(accum): D = -accum; return D"), dtypes.FLOAT32, (), (("D", OutputSpec(dtypes.FLOAT16)),)
        )
    passes.clear()


def test_the_last_pass_is_judged_also_where_the_others_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def lose_a_store(program: Program, context: Context) -> Program:
        return Program(program.nodes[:-1], program.types[:-1])

    broken = [dataclasses.replace(p, run=lose_a_store) if p.name == "fold" else p for p in passes.PASSES]
    monkeypatch.setattr(passes, "PASSES", tuple(broken))
    monkeypatch.setattr(passes, "verify_each", False)
    passes.clear()
    with pytest.raises(IrError, match=r"^fold left"):
        passes.lower(
            parse("def epi(accum): D = -accum; return D"), dtypes.FLOAT32, (), (("D", OutputSpec(dtypes.FLOAT16)),)
        )
    passes.clear()
