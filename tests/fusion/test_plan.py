# SPDX-License-Identifier: Apache-2.0
"""Plans: equal where functions mean the same, different where they do not, the same in every process."""

import itertools
import pickle
import random
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from epifuse import dtypes
from epifuse.fusion import passes
from epifuse.fusion.ir.graph import Graph, GraphBuilder
from epifuse.fusion.ir.node import Broadcast
from epifuse.fusion.plan import Access, OperandSpec, OutputSpec
from epifuse.fusion.vocabulary import table

ROWS = {"x": "f16 row", "y": "f16 row", "z": "f16 row"}
"""Three operands that nothing but their use tells apart."""


def plan_of(bind: Callable[..., Any], text: str, **operands: str) -> Any:
    names = text[text.index("(") + 1 : text.index(")")].replace(" ", "").split(",")[1:]
    return bind(text, **{n: operands.get(n, "f16 row") for n in names}).plan


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("def epi(accum, x, y): D = accum * x + y; return D", "def other(accum, y, x): D = accum * x + y; return D"),
        (
            "def epi(accum, x, y): D = accum * x + y; return D",
            "def epi(accum, b, a): t = accum * a; D = b + t; return D",
        ),
        (
            "def epi(accum, x): D = relu(accum + x); return D",
            "def epi(accum, x, y): t = accum * y; D = relu(x + accum); return D",
        ),
        ("def epi(accum, x): D = accum * x; return D", "def epi(accum, x): t = accum; u = t * x; D = u; return D"),
        ("def epi(accum): D = relu(accum); return D", "def epi(accum): D = maximum(0, accum); return D"),
        ("def epi(accum): D = accum * 2; return D", "def epi(accum): D = 2.0 * accum; return D"),
        ("def epi(accum): D = accum * 2.0; return D", "def epi(accum): D = accum * (1.0 + 1.0) * 1.0; return D"),
        (
            "def epi(accum, x, y): D = (accum + x) * (accum + y); return D",
            "def epi(accum, x, y): D = (y + accum) * (x + accum); return D",
        ),
        (
            "def epi(accum, x, y, z): D = (accum + x) * y - z; return D",
            "def epi(accum, x, y, z): D = x * (z + accum) - y; return D",
        ),
        (
            "def epi(accum): D = relu(accum); F = accum * 2.0; return D, F",
            "def epi(accum): F = relu(accum); D = accum * 2.0; return F, D",
        ),
        (
            "def epi(accum): t = silu(accum); D = t; F = t; return D, F",
            "def epi(accum): D = silu(accum); F = silu(accum); return F, D",
        ),
        (
            "def epi(accum, x, y): D = multiply_add(accum, x, y); return D",
            "def epi(accum, x, y): D = multiply_add(x, accum, y); return D",
        ),
        (
            "def epi(accum, x): D = where(x > accum, x, accum); return D",
            "def epi(accum, q): D = where(q > accum, q, accum); return D",
        ),
        ("def epi(accum): D = gelu(accum); return D", "def epi(accum): D = gelu(accum, approximate='none'); return D"),
        ("def epi(accum): D = accum ** 2; return D", "def epi(accum): D = square(accum); return D"),
    ],
)
def test_functions_that_mean_the_same_have_equal_plans(bind: Callable[..., Any], one: str, other: str) -> None:
    a, b = plan_of(bind, one), plan_of(bind, other)
    assert a == b
    assert hash(a) == hash(b)
    assert a.key == b.key


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("def epi(accum, x): D = accum - x; return D", "def epi(accum, x): D = x - accum; return D"),
        ("def epi(accum, x, y): D = accum * x + y; return D", "def epi(accum, x, y): D = (accum + x) * y; return D"),
        ("def epi(accum): D = accum * 2.0; return D", "def epi(accum): D = accum * 3.0; return D"),
        ("def epi(accum): D = accum + 0.0; return D", "def epi(accum): D = accum; return D"),
        ("def epi(accum): D = accum * 0.0; return D", "def epi(accum): D = accum * -0.0; return D"),
        ("def epi(accum, x, y): D = (accum + x) + y; return D", "def epi(accum, x, y): D = accum + (x + y); return D"),
        ("def epi(accum): D = gelu(accum); return D", "def epi(accum): D = gelu(accum, approximate='tanh'); return D"),
        ("def epi(accum): D = accum; F = accum; return D, F", "def epi(accum): D = accum; return D"),
        (
            "def epi(accum, x, y): D = accum * x - y * y; return D",
            "def epi(accum, x, y): D = accum * x - y * x; return D",
        ),
        ("def epi(accum): D = cast(accum, 'float16'); return D", "def epi(accum): D = accum; return D"),
        (
            "def epi(accum): D = cast(accum, 'float16') * 2.0; return D",
            "def epi(accum): D = cast(accum, 'bfloat16') * 2.0; return D",
        ),
        (
            "def epi(accum, x, y): D = where(accum > 0.0, x, y); return D",
            "def epi(accum, x, y): D = where(accum < 0.0, x, y); return D",
        ),
    ],
)
def test_functions_that_differ_have_different_plans(bind: Callable[..., Any], one: str, other: str) -> None:
    a, b = plan_of(bind, one), plan_of(bind, other)
    assert a != b
    assert a.key != b.key


def test_dtypes_broadcasts_accesses_and_axes_are_part_of_a_plan(bind: Callable[..., Any]) -> None:
    text = "def epi(accum, x): D = accum + x; s = sum(accum, dim=0); return D, s"
    variants = [
        bind(text, accum, out={"D": d, "s": s}, x=x).plan
        for accum, d, s, x in (
            ("f32", "f16", "f32 over m", "f16 row"),
            ("f16", "f16", "f32 over m", "f16 row"),
            ("f32", "bf16", "f32 over m", "f16 row"),
            ("f32", "f16", "f32 over n", "f16 row"),
            ("f32", "f16", "f16 over m", "f16 row"),
            ("f32", "f16", "f32 over m", "f16 column"),
            ("f32", "f16", "f32 over m", "bf16 row"),
            ("f32", "f16", "f32 over m", "f32 scalar"),
            ("f32", "f16", "f32 over m", "f32 argument"),
        )
    ]
    for a, b in itertools.combinations(variants, 2):
        assert a != b
        assert a.key != b.key


@pytest.mark.parametrize("order", list(itertools.permutations(("x", "y", "alpha", "full"))))
def test_the_order_of_parameters_changes_the_binding_alone(bind: Callable[..., Any], order: tuple[str, ...]) -> None:
    specs = {"x": "f16 row", "y": "f16 row", "alpha": "f32 argument", "full": "bf16 matrix"}
    body = "D = relu(alpha * accum + x - y * full)"
    first = bind(f"def epi(accum, x, y, alpha, full): {body}; return D", **specs)
    found = bind(f"def epi(accum, {', '.join(order)}): {body}; return D", **{name: specs[name] for name in order})
    assert found.plan == first.plan
    assert found.binding == first.binding


# --- any program, written another way ---------------------------------------------------------------------------------

OPERATIONS = {"add": 2, "mul": 2, "maximum": 2, "sub": 2, "exp": 1, "neg": 1, "multiply_add": 3, "silu": 1}
Program = tuple[list[tuple[str, tuple[int, ...]]], list[int]]


def random_program(rng: random.Random) -> Program:
    """Values as (operation, operands), leaves first, and which of them are stored."""
    values: list[tuple[str, tuple[int, ...]]] = [("accum", ()), ("half", ())]
    values += [(f"x{k}", ()) for k in range(rng.randint(1, 8))]
    for _ in range(rng.randint(1, 20)):
        name = rng.choice(list(OPERATIONS))
        near, far = max(0, len(values) - 4), rng.random() < 0.5
        values.append((name, tuple(rng.randrange(0 if far else near, len(values)) for _ in range(OPERATIONS[name]))))
    return values, [len(values) - 1, *(rng.randrange(len(values)) for _ in range(rng.randint(0, 3)))]


def written(program: Program, rng: random.Random | None) -> Graph:
    """The program as a graph: in order, or (with ``rng``) renamed, reordered, commuted, with the outputs permuted."""
    values, stored = program
    names = [f"x{k}" for k in range(8)]
    outputs = ["D", "E", "F", "G"][: len(stored)]
    if rng:
        rng.shuffle(names)
        rng.shuffle(outputs)
    builder = GraphBuilder()
    new: dict[int, int] = {}
    while len(new) < len(values):
        ready = [i for i, (_, operands) in enumerate(values) if i not in new and all(j in new for j in operands)]
        index = rng.choice(ready) if rng else ready[0]
        name, operands = values[index]
        inputs = [new[j] for j in operands]
        if rng and name in ("add", "mul", "maximum", "multiply_add") and rng.random() < 0.5:
            inputs[:2] = inputs[1::-1]
        if name == "accum":
            new[index] = builder.accum()
        elif name == "half":
            new[index] = builder.constant(0.5)
        elif name in OPERATIONS:
            new[index] = builder.compute(table.lookup(name), inputs)
        else:
            new[index] = builder.load(names[int(name[1:])])
    for name, index in zip(outputs, stored, strict=True):
        builder.store(name, new[index])
    return Graph(tuple(builder.nodes), tuple(names), tuple(outputs))


def test_any_program_written_another_way_has_the_same_plan() -> None:
    spec = OperandSpec(Access.MEMORY, dtypes.FLOAT16, Broadcast.ROW)
    operands = tuple((f"x{k}", spec) for k in range(8))
    outputs = tuple((name, OutputSpec(dtypes.FLOAT16)) for name in "DEFG")
    seen = set()
    for seed in range(200):
        rng = random.Random(seed)
        program = random_program(rng)
        plan, _ = passes.lower(written(program, None), dtypes.FLOAT32, operands, outputs)
        for _ in range(2):
            other, _ = passes.lower(written(program, rng), dtypes.FLOAT32, operands, outputs)
            assert other == plan, seed
        seen.add(plan.key)
    assert len(seen) > 150


def test_the_binding_follows_the_names(bind: Callable[..., Any]) -> None:
    found = bind("def epi(accum, p, q): D = accum * p - q; return D", p="f16 row", q="f16 row")
    renamed = bind("def epi(accum, q, p): D = accum * q - p; return D", p="f16 row", q="f16 row")
    assert found.plan == renamed.plan
    assert [{"p": "q", "q": "p"}[name] for name in found.binding.loads] == list(renamed.binding.loads)
    slots = {name: k + 1 for k, name in enumerate(found.binding.loads)}
    mul, sub = found.plan.computes
    assert set(mul.operands) == {0, slots["p"]}
    assert sub.operands == (mul.slot, slots["q"])


def test_outputs_of_either_order_have_one_plan(bind: Callable[..., Any]) -> None:
    text = "def epi(accum): D = accum; F = relu(accum); m = max(accum, dim=1); return {}"
    plans = {
        bind(text.format(", ".join(names)), out={"F": "f32", "m": "f32 over n"})
        for names in itertools.permutations(("D", "F", "m"))
    }
    assert len({bound.plan for bound in plans}) == 1
    (binding,) = {bound.binding for bound in plans}
    assert sorted(binding.stores[:2]) == ["D", "F"]
    assert binding.stores[2] == "m"


def test_slots_are_numbered_loads_constants_computes(bind: Callable[..., Any]) -> None:
    plan = bind("def epi(accum, x): D = gelu(accum * 3.0 + x); return D", x="f16 row").plan
    numbered = [record.slot for record in (*plan.loads, *plan.constants, *plan.computes)]
    assert numbered == list(range(plan.slots))
    assert plan.loads[0].access is Access.ACCUM
    for compute in plan.computes:
        assert all(slot < compute.slot for slot in compute.operands)
    assert plan.stores[0].operand == plan.computes[-1].slot


def test_an_unused_accumulator_is_not_loaded(bind: Callable[..., Any]) -> None:
    plan = bind("def epi(accum, x): D = x * 2.0; return D", x="f16 row").plan
    assert [load.access for load in plan.loads] == [Access.MEMORY]
    constant = bind("def epi(accum): D = 2.0 * 3.0; return D").plan
    assert (constant.loads, [c.literal.value for c in constant.constants], constant.computes) == ((), [6.0], ())


def test_halved_columns(bind: Callable[..., Any]) -> None:
    plan = bind("def epi(accum, c): D = swiglu(accum) * c; F = accum; return D, F", c="f16 row halved").plan
    assert {store.halved for store in plan.stores} == {True, False}
    assert [load.halved for load in plan.loads] == [False, True]
    selectors = {c.primitive: c for c in plan.computes if c.primitive in ("even_columns", "odd_columns")}
    assert set(selectors) == {"even_columns", "odd_columns"}
    assert all(c.halved for c in plan.computes)
    assert plan.facts.halved
    assert plan.facts.store_bytes == 3.0  # D has one element of 2 bytes for two of the accumulator


def test_facts(bind: Callable[..., Any]) -> None:
    text = "def epi(accum, c, r): D = tanh(accum * r + c); F = accum; return D, F"
    facts = bind(text, out={"F": "f32"}, c="bf16 matrix", r="f32 row").plan.facts
    assert (facts.load_bytes, facts.store_bytes) == (2, 6)
    assert (facts.fma_operations, facts.special_operations) == (2, 1)
    assert facts.live_slots == 3  # accum (stored at the end), the product, and c
    chain = bind("def epi(accum): D = ((accum + 1.0) * 2.0 + 3.0) * 4.0; return D").plan.facts
    assert chain.live_slots == 1


PICKLED = """
import pickle, sys
plan, graph, arguments = pickle.load(sys.stdin.buffer)
from epifuse.fusion import passes
from epifuse.fusion.frontend import parse
mine, _ = passes.lower(parse({text!r}), *arguments)
assert mine == plan and hash(mine) == hash(plan) and len({{mine, plan}}) == 1
fresh = parse({text!r})
assert graph == fresh and hash(graph) == hash(fresh)
print(mine.key)
"""


def test_plans_are_the_same_in_every_process(bind: Callable[..., Any]) -> None:
    text = "def epi(accum, x, y): D = gelu(accum * x + y); F = (x + y) * (y + accum); return D, F"
    found = bind(text, **{name: ROWS[name] for name in ("x", "y")})
    hash(found.plan), hash(found.graph)  # cached hashes travel, or not, with the pickle
    spec = OperandSpec(Access.MEMORY, dtypes.FLOAT16, Broadcast.ROW)
    arguments = (
        dtypes.FLOAT32,
        (("x", spec), ("y", spec)),
        (("D", OutputSpec(dtypes.FLOAT16)), ("F", OutputSpec(dtypes.FLOAT16))),
    )
    payload = pickle.dumps((found.plan, found.graph, arguments))
    done = subprocess.run(
        [sys.executable, "-c", PICKLED.format(text=text)],
        input=payload,
        capture_output=True,
        env={"PYTHONHASHSEED": "1", "PYTHONPATH": ":".join(sys.path)},
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.decode().strip() == found.plan.key


def test_pickle_round_trip(bind: Callable[..., Any]) -> None:
    found = bind(
        "def epi(accum, x): D = silu(accum + x); s = max(D, dim=1); return D, s", x="f16 row", out={"s": "f32 over n"}
    )
    again = pickle.loads(pickle.dumps(found.plan))
    assert again == found.plan
    assert again.key == found.plan.key
    assert again.computes[0].compute_dtype is found.plan.computes[0].compute_dtype
    assert pickle.loads(pickle.dumps(found.binding)) == found.binding


TEN = {
    "identity": ("def epi(accum): D = accum; return D", {}, {}),
    "relu_bias": (
        "def epi(accum, bias, alpha): D = relu(accum * alpha + bias); return D",
        {"bias": "f16 row", "alpha": "f32 argument"},
        {},
    ),
    "gelu_tanh": (
        "def epi(accum, bias): D = gelu(accum + bias, approximate='tanh'); return D",
        {"bias": "bf16 row"},
        {"D": "bf16"},
    ),
    "gelu": ("def epi(accum): D = gelu(accum); return D", {}, {}),
    "silu": ("def epi(accum): D = silu(accum); return D", {}, {}),
    "alpha_beta": (
        "def epi(accum, C, alpha, beta): D = alpha * accum + beta * C; return D",
        {"C": "f16 matrix", "alpha": "f32 argument", "beta": "f32 argument"},
        {},
    ),
    "row_column": (
        "def epi(accum, r, c): D = accum * r * c; return D",
        {"r": "f32 row", "c": "f32 column"},
        {"D": "e4m3"},
    ),
    "swiglu": ("def epi(accum, bias): D = swiglu(accum + bias); return D", {"bias": "f16 row"}, {}),
    "quantize": (
        "def epi(accum, s): D = clamp(accum * s, -128, 127); m = amax(abs(accum)); return D, m",
        {"s": "f32 column"},
        {"D": "i8", "m": "f32 over lmn"},
    ),
    "masked": (
        "def epi(accum, mask, C): t = where(mask, accum, 0.0); D = t + C; F = t; s = sum(t, dim=1); return D, F, s",
        {"mask": "b1 matrix", "C": "f16 matrix"},
        {"F": "f32", "s": "f32 over n"},
    ),
}


@pytest.mark.parametrize("name", TEN)
def test_golden_plans(bind: Callable[..., Any], golden: Callable[[str, str], None], name: str) -> None:
    text, operands, out = TEN[name]
    found = bind(text, out=out, **operands)
    header = f"{text}\nloads {', '.join(found.binding.loads) or '-'}; stores {', '.join(found.binding.stores)}\n"
    golden(f"plans/{name}.txt", f"{header}\n{found.plan}")
