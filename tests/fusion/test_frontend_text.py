# SPDX-License-Identifier: Apache-2.0
"""Functions given as text: one def or lambda, however it is laid out."""

import pytest

from epifuse.errors import EpilogueSyntaxError
from epifuse.fusion.frontend import parse
from epifuse.fusion.ir.graph import Graph
from epifuse.fusion.ir.node import Kind


def ops(graph: Graph) -> list[str]:
    """The operations of a graph in order."""
    return [node.op for node in graph.nodes if node.op]


def constants(graph: Graph) -> list[int | float]:
    """The numbers of a graph in order."""
    return [node.literal.value for node in graph.nodes if node.kind is Kind.CONSTANT]


BODY = "D = relu(accum * 2.0); return D"
TEXTS = {
    "one line": f"def epi(accum): {BODY}",
    "lines": "def epi(accum):\n    D = relu(accum * 2.0)\n    return D\n",
    "indented": "\n        def epi(accum):\n            D = relu(accum * 2.0)\n            return D\n        ",
    "indented after a comment": "# at the margin\n  def epi(accum):\n    D = relu(accum * 2.0)\n    return D",
    "no final newline": "def epi(accum):\n    D = relu(accum * 2.0)\n    return D",
    "CRLF": "def epi(accum):\r\n    D = relu(accum * 2.0)\r\n    return D\r\n",
    "CR": "def epi(accum):\r    D = relu(accum * 2.0)\r    return D\r",
    "tabs": "\tdef epi(accum):\n\t\tD = relu(accum * 2.0)\n\t\treturn D\n",
    "docstring": 'def epi(accum):\n    """Says\nwhat it does."""\n    D = relu(accum * 2.0)\n    return D\n',
    "indented docstring": '  def epi(accum):\n    """Says\nwhat."""\n    D = relu(accum * 2.0)\n    return D\n',
    "comments": "# before\ndef epi(accum):  # here\n    # there\n    D = relu(accum * 2.0)\n# margin\n    return D\n",
    "continued": "def epi(\n  accum,\n):\n    D = relu(\naccum * 2.0\n    )\n    return (D)\n",
    "backslash": "def epi(accum):\n    D = relu(accum \\\n* 2.0)\n    return D\n",
    "annotated": "def epi(accum: 'f32') -> 'f16':\n    D: float = relu(accum * 2.0)\n    return D\n",
    "lambda": "lambda accum: relu(accum * 2.0)",
    "indented lambda": "   lambda accum: relu(accum * 2.0)\n",
    "expression": "def epi(accum): return relu(accum * 2.0)",
    "byte order mark": "\ufeffdef epi(accum): D = relu(accum * 2.0); return D",
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_text(text):
    graph = parse(text)
    assert ops(graph) == ["mul", "relu"]
    assert constants(graph) == [2.0]
    assert graph.outputs == ("D",)


NOT_ONE_FUNCTION = {
    "": "The text of the epilogue holds no function.",
    "# only a comment": "The text of the epilogue holds no function.",
    "x = 1": "The text of the epilogue holds an assignment, not a function.",
    "class A: pass": "The text of the epilogue holds a class, not a function.",
    "accum + 1": "The text of the epilogue holds an expression whose value is not used, not a function.",
    "f = lambda accum: accum": "The text of the epilogue holds an assignment, not a function.",
    "async def epi(accum): return accum": "An epilogue cannot be an async function.",
    "def a(accum): return accum\ndef b(accum): return accum": "The text of the epilogue holds more than one function.",
    "import torch\ndef epi(accum): return accum": "The text of the epilogue holds more than one statement.",
    "def epi(accum)\n    return accum": "The text of the epilogue is not Python: expected ':'.",
    "def epi(accum): D = accum \x00": "The text of the epilogue is not Python: source code string cannot contain null",
    "@cached\ndef epi(accum): return accum * 1.0": "A decorator in a text is never applied.",
}


@pytest.mark.parametrize("text", NOT_ONE_FUNCTION)
def test_text_that_is_not_one_function(text):
    with pytest.raises(EpilogueSyntaxError) as caught:
        parse(text)
    assert str(caught.value).startswith(NOT_ONE_FUNCTION[text])
