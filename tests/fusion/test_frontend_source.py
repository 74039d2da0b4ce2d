# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: PLW0108, PLC2401, PLC3002, B008, E731, F841, RET503 - odd ways to write functions are what is tested
"""Finding a function's source: every way to write one, and never the wrong one."""

import functools
import importlib.util
import io
import linecache
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from epifuse.errors import EpilogueError, EpilogueSyntaxError, SourceError
from epifuse.fusion.activation import relu
from epifuse.fusion.frontend import clear, parse
from epifuse.fusion.ir.graph import Graph
from epifuse.fusion.ir.node import Kind

HERE = str(Path(__file__))


def ops(graph: Graph) -> list[str]:
    """The operations of a graph in order."""
    return [node.op for node in graph.nodes if node.op]


def constants(graph: Graph) -> list[int | float]:
    """The numbers of a graph in order."""
    return [node.literal.value for node in graph.nodes if node.kind is Kind.CONSTANT]


def load(path: Path, text: str, name: str = "epi"):
    """Write ``text`` to a file, import it, and take one name of it."""
    path.write_bytes(text.encode())
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.dont_write_bytecode, kept = True, sys.dont_write_bytecode
    try:
        spec.loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = kept
    return getattr(module, name)


def test_plain_def():
    def epi(accum, bias):
        """Docstring."""
        # a comment
        D = relu(accum + bias)
        return D

    graph = parse(epi)
    assert graph.inputs == ("bias",)
    assert ops(graph) == ["add", "relu"]
    place = next(n.place for n in graph.nodes if n.op == "add")
    assert place.file == HERE
    assert linecache.getline(HERE, place.line)[place.column : place.end_column] == "accum + bias"


def test_def_whose_continuation_lines_stand_at_the_margin():
    def epi(accum, bias):
        """Text
        at the margin."""
        D = relu(accum + bias)
        return D

    assert ops(parse(epi)) == ["add", "relu"]


def test_statements_after_the_return_are_seen():
    def epi(accum):
        D = relu(accum)
        return D

        D = D + 1.0  # no instruction in the code object comes from this line

    with pytest.raises(EpilogueSyntaxError, match="There is a statement after the return."):
        parse(epi)


def test_names_that_the_file_imports_and_names_that_it_does_not():
    functional = torch.nn.functional  # a call functional.relu() compiles to other instructions than torch.relu()

    def epi(accum):
        a = torch.relu(accum)
        b = functional.gelu(a)
        D = F.silu(b).tanh()
        return D

    assert ops(parse(epi)) == ["relu", "gelu", "silu", "tanh"]


def test_lambdas_on_one_line():
    pair = (lambda accum: relu(accum), lambda accum: accum * 2.0), lambda accum: relu(accum) + 1.0  # fmt: skip
    assert ops(parse(pair[0][0])) == ["relu"]
    assert ops(parse(pair[0][1])) == ["mul"]
    assert ops(parse(pair[1])) == ["relu", "add"]


def test_lambdas_that_differ_in_a_number_alone():
    first, *others = (lambda accum: accum + 1.0), (lambda accum: accum + 2.0), lambda accum: accum + (3.0)  # fmt: skip
    assert [constants(parse(f)) for f in (first, *others)] == [[1.0], [2.0], [3.0]]


def test_lambda_in_the_middle_of_a_call():
    def take(*functions, **named):
        return [*functions, *named.values()]

    found = take(
        1,
        lambda accum, bias: relu(
            accum  # ) a bracket in a comment
            + bias
        ),
        epilogue=(lambda accum, *, scale=2.0:
                  ((accum) * scale)),
        other={"k": [lambda accum: (accum)]},
    )  # fmt: skip
    assert ops(parse(found[1])) == ["add", "relu"]
    graph = parse(found[2])
    assert ops(graph) == ["mul"]
    assert [(name, number.value) for name, number in graph.defaults] == [("scale", 2.0)]
    assert ops(parse(found[3]["k"][0])) == []


def test_lambda_with_closure_and_a_non_ascii_line():
    größe = 4.0
    ü, epi = "üü", lambda accum: accum * größe
    graph = parse(epi)
    assert constants(graph) == [4.0]
    place = next(n.place for n in graph.nodes if n.op == "mul")
    assert place.text[place.column : place.end_column] == "accum * größe"


def test_lambda_with_a_default_that_is_a_lambda_too():
    epi = (lambda accum, k=(lambda: 2.0)(): accum * k)  # fmt: skip
    assert [(name, number.value) for name, number in parse(epi).defaults] == [("k", 2.0)]


def test_without_column_information(tmp_path):
    script = tmp_path / "plain.py"
    script.write_text(
        "from epifuse.fusion.frontend import parse\n"
        "k = 3.0\n"
        "def epi(accum):\n    D = accum * k\n    return D\n"
        "one = lambda accum: accum + 1.0\n"
        "print([n.op for n in parse(epi).nodes if n.op], [n.op for n in parse(one).nodes if n.op])\n"
    )
    done = subprocess.run(
        [sys.executable, "-X", "no_debug_ranges", str(script)], capture_output=True, text=True, check=True
    )
    assert done.stdout == "['mul'] ['add']\n"


def decorate(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)

    return wrapper


def replace(function):
    def wrapper(accum, bias):
        D = accum - bias
        return D

    return wrapper


def hide(function):
    def wrapper(*args):
        return function(*args)

    return wrapper


def register(function):
    return function


def test_decorators():
    @register
    @decorate
    @functools.cache
    def wrapped(accum, bias):
        D = relu(accum + bias)
        return D

    @replace
    def replaced(accum, bias):
        D = accum + bias
        return D

    @hide
    def hidden(accum, bias):
        D = accum + bias
        return D

    @torch.no_grad()
    def no_grad(accum):
        D = relu(accum)
        return D

    assert ops(parse(wrapped)) == ["add", "relu"]
    assert ops(parse(replaced)) == ["sub"]
    assert ops(parse(no_grad)) == ["relu"]
    with pytest.raises(EpilogueSyntaxError, match=r"The parameter \*args is not part of"):
        parse(hidden)


class Holder:
    def method(self, accum):
        D = relu(accum)
        return D

    @staticmethod
    def static(accum):
        D = relu(accum)
        return D

    def __call__(self, accum):
        return accum


def test_methods():
    assert ops(parse(Holder.static)) == ["relu"]
    with pytest.raises(EpilogueError, match="The epilogue is a method of a Holder object, not a plain function."):
        parse(Holder().method)
    with pytest.raises(EpilogueError, match="accum must be an input to the epilogue function, and its first"):
        parse(Holder.method)


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (3, "an int object"),
        (None, "a NoneType object"),
        (functools.partial(Holder.static), "a partial object"),
        (Holder(), "a Holder object"),
        (Holder, "the class Holder"),
        (len, "the function builtins.len"),
        (torch.nn.ReLU(), "a ReLU object"),
        (b"def epi(accum): return accum", "a bytes object"),
    ],
)
def test_not_a_function(value, what):
    with pytest.raises(EpilogueError, match=f"^The epilogue is {what}, not a plain function"):
        parse(value)


@pytest.mark.parametrize("operation", [relu, torch.relu])
def test_an_operation_is_not_an_epilogue(operation):
    with pytest.raises(EpilogueError, match="The epilogue is the operation relu") as caught:
        parse(operation)
    assert "lambda accum: relu(accum)" in str(caught.value)


def test_generators_and_coroutines():
    def generator(accum):
        yield accum

    async def coroutine(accum):
        return accum

    with pytest.raises(EpilogueSyntaxError, match="A 'yield' is not part of"):
        parse(generator)
    with pytest.raises(EpilogueSyntaxError, match="cannot be an async function") as caught:
        parse(coroutine)
    assert caught.value.text.strip() == "async def coroutine(accum):"


def test_assert_in_a_file_that_pytest_rewrites():
    def epi(accum):
        D = relu(accum)
        assert D is not None
        return D

    with pytest.raises(EpilogueSyntaxError, match="An 'assert' statement is not part of") as caught:
        parse(epi)
    assert caught.value.text.strip() == "assert D is not None"


def test_a_partial_is_no_decorator():
    def epi(accum, alpha):
        D = accum * alpha
        return D

    bound = functools.update_wrapper(functools.partial(epi, alpha=2.0), epi)
    with pytest.raises(EpilogueError, match="The epilogue is a partial object"):
        parse(bound)


def test_no_source():
    scope = {}
    exec("def epi(accum):\n    D = accum\n    return D", scope)
    with pytest.raises(SourceError, match="The source of function 'epi' is not available") as caught:
        parse(scope["epi"])
    assert "Pass the function's text" in str(caught.value)
    assert isinstance(caught.value, ValueError)


def test_stdin():
    program = textwrap.dedent(
        """
        from epifuse.fusion.frontend import parse
        def epi(accum):
            D = accum
            return D
        try:
            parse(epi)
        except ValueError as error:
            print(type(error).__name__, "text" in str(error))
        """
    )
    done = subprocess.run([sys.executable, "-"], input=program, capture_output=True, text=True, check=True)
    assert done.stdout == "SourceError True\n"


def test_cell_of_a_notebook():
    text = "def epi(accum, bias):\n    D = relu(accum + bias)\n    return D\n"
    name = "<ipython-input-7-abc>"
    linecache.cache[name] = (len(text), None, io.StringIO(text).readlines(), name)
    scope = {"relu": relu}
    exec(compile(text, name, "exec"), scope)
    try:
        assert ops(parse(scope["epi"])) == ["add", "relu"]
    finally:
        del linecache.cache[name]


def test_text_that_pretends_to_be_another_file(tmp_path):
    path = tmp_path / "pretended.py"
    path.write_text("def epi(accum):\n    D = accum + 1.0\n    return D\n")
    scope = {}
    exec(compile("def epi(accum):\n    D = accum - 1.0\n    return D\n", str(path), "exec"), scope)
    with pytest.raises(SourceError, match="no longer matches the function"):
        parse(scope["epi"])


EDITS = {
    "a number": ("accum * 2.0 + bias", "accum * 3.0 + bias"),
    "an operator": ("accum * 2.0 + bias", "accum * 2.0 - bias"),
    "the order": ("accum * 2.0 + bias", "accum + 2.0 * bias"),
    "a name": ("accum * 2.0 + bias", "bias * 2.0 + bias"),
    "a parameter": ("accum, bias", "accum, bias, extra"),
    "gone": ("def epi", "def other"),
    "negative zero": ("accum * 2.0", "accum * 2"),
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_file_edited_after_import(tmp_path, edit):
    text = "def epi(accum, bias):\n    D = accum * 2.0 + bias\n    return D\n"
    path = tmp_path / "edited.py"
    function = load(path, text)
    path.write_text(text.replace(*edit))
    linecache.checkcache(str(path))
    with pytest.raises(
        SourceError, match=r"The source of function 'epi' in '.*edited.py' \(line 1\) no longer matches"
    ):
        parse(function)


def test_lines_added_above_after_import(tmp_path):
    text = "def epi(accum, bias):\n    D = accum * 2.0 + bias\n    return D\nother = [lambda accum: accum * 5.0]\n"
    path = tmp_path / "moved.py"
    function = load(path, text)
    held = load(path, text, "other")[0]
    path.write_text("import math\n\n\nx = lambda accum: accum * 6.0\n" + text)
    linecache.checkcache(str(path))
    graph = parse(function)
    assert next(n.place for n in graph.nodes if n.op == "add").line == 6
    assert constants(parse(held)) == [5.0]


def test_module_loaded_again_after_an_edit(tmp_path):
    path = tmp_path / "again.py"
    first = load(path, "def epi(accum):\n    D = accum * 2.0\n    return D\n")
    assert constants(parse(first)) == [2.0]
    second = load(path, "K = 1\n\n\ndef epi(accum):\n    D = accum * 3.0\n    return D\n")
    assert constants(parse(second)) == [3.0]
    assert constants(parse(first)) == [2.0]


def test_crlf_file(tmp_path):
    function = load(tmp_path / "crlf.py", "def epi(accum, bias):\r\n    D = accum + bias\r\n    return D\r\n")
    graph = parse(function)
    assert ops(graph) == ["add"]
    assert next(n.place for n in graph.nodes if n.op == "add").text == "    D = accum + bias"


def test_graph_holds_the_text():
    def epi(accum):
        D = relu(accum)
        return D

    assert parse(epi).text == "    def epi(accum):\n        D = relu(accum)\n        return D\n"
    assert parse("def epi(accum): D = accum; return D").text == "def epi(accum): D = accum; return D\n"


def test_long_expression_and_long_body():
    chained = parse("def epi(accum): D = accum" + " + 1.0" * 2000 + "; return D")
    assert ops(chained) == ["add"] * 2000
    lines = "".join(f"    t{i + 1} = t{i} + 1.0\n" for i in range(2000))
    assert ops(parse(f"def epi(accum):\n    t0 = accum\n{lines}    D = t2000\n    return D\n")) == ["add"] * 2000


def test_long_expression_in_a_file_from_a_deep_stack(tmp_path):
    function = load(tmp_path / "long.py", "def epi(accum):\n    D = accum" + " + 1.0" * 2000 + "\n    return D\n")

    def deeper(levels):
        return deeper(levels - 1) if levels else parse(function)

    assert ops(deeper(600)) == ["add"] * 2000


@pytest.mark.parametrize("text", ["-" * 50000 + "accum", "accum" + " + 1.0" * 50000])
def test_too_deep_for_python(text):
    with pytest.raises(EpilogueSyntaxError, match="nested too deeply"):
        parse(f"def epi(accum): D = {text}; return D")


def test_threads():
    clear()

    def make(k):
        def epi(accum, bias):
            D = relu(accum * k + bias)
            return D

        return epi

    failures = []

    def work(seed):
        for turn in range(50):
            k = float((seed + turn) % 7)
            if constants(parse(make(k))) != [k]:
                failures.append(k)
            if turn == 25 and seed == 0:
                clear()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
