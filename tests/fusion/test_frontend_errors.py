# SPDX-License-Identifier: Apache-2.0
"""What the epilogue's language refuses: sentence, line and caret, in texts and in functions."""

import pytest

from epifuse.errors import (
    EpilogueError,
    EpilogueSyntaxError,
    ReductionUseError,
    SourceError,
    SsaError,
    UnknownNameError,
)
from epifuse.fusion.frontend import parse

NOT = "is not part of the epilogue's language."


def program(body: str, parameters: str = "accum, bias, xs") -> str:
    """A def with ``body`` as its lines."""
    return f"def epi({parameters}):\n" + "".join(f"    {line}\n" for line in body.split("\n"))


# body: (sentence, the text under the caret); the caret's line is that of the text.
REFUSED = {
    "D = relu(accum)\nD += accum": ("Variable 'D' cannot be defined twice. ('+=' defines it again.)", "D += accum"),
    "t = accum * bias\nt += bias\nD = relu(t)": (
        "Variable 't' cannot be defined twice. ('+=' defines it again.)",
        "t += bias",
    ),
    "new -= accum\nD = accum": ("Variable 'new' cannot be defined twice. ('-=' defines it again.)", "new -= accum"),
    "D = accum\nD = accum * 2.0": ("Variable 'D' cannot be defined twice.", "D"),
    "accum = bias\nD = accum": ("Variable 'accum' cannot be defined twice.", "accum"),
    "bias = accum\nD = accum": ("Variable 'bias' cannot be defined twice.", "bias"),
    "D, D = accum, bias": ("Variable 'D' cannot be defined twice.", "D"),
    "D = accum\nreturn D * 2.0": ("Variable 'D' cannot be defined twice.", "D * 2.0"),
    "if accum: D = accum": (f"An 'if' statement {NOT}", "if accum: D = accum"),
    "if accum:\n    D = accum\nelse:\n    D = bias": (f"An 'if' statement {NOT}", "if accum:"),
    "for x in xs: D = accum": (f"A 'for' loop {NOT}", "for x in xs: D = accum"),
    "while xs: D = accum": (f"A 'while' loop {NOT}", "while xs: D = accum"),
    "with xs: D = accum": (f"A 'with' statement {NOT}", "with xs: D = accum"),
    "try: D = accum\nfinally: pass": (f"A 'try' statement {NOT}", "try: D = accum"),
    "match accum:\n    case 1: pass": (f"A 'match' statement {NOT}", "match accum:"),
    "assert True\nD = accum": (f"An 'assert' statement {NOT}", "assert True"),
    "del bias\nD = accum": (f"A 'del' statement {NOT}", "del bias"),
    "global D\nD = accum": (f"A 'global' statement {NOT}", "global D"),
    "import torch\nD = accum": (f"An 'import' statement {NOT}", "import torch"),
    "from torch import relu\nD = accum": (f"An 'import' statement {NOT}", "from torch import relu"),
    "pass\nD = accum": (f"A 'pass' statement {NOT}", "pass"),
    "raise xs": (f"A 'raise' statement {NOT}", "raise xs"),
    "def f(): pass\nD = accum": (f"A nested function {NOT}", "def f(): pass"),
    "class A: pass\nD = accum": (f"A class {NOT}", "class A: pass"),
    "f = lambda x: x\nD = accum": (f"An inner lambda {NOT}", "lambda x: x"),
    "D = (lambda x: x)(accum)": ("An inner lambda cannot be called.", "lambda x: x"),
    "'doc'\n'string'\nD = accum": (f"An expression whose value is not used {NOT}", "'string'"),
    "3\nD = accum": (f"An expression whose value is not used {NOT}", "3"),
    "accum.relu()\nD = accum": (f"An expression whose value is not used {NOT}", "accum.relu()"),
    "print(accum)\nD = accum": ("The value of print(...) is not used.", "print(accum)"),
    "D = (y := accum)": (f"An assignment expression (:=) {NOT}", "y := accum"),
    "(y := accum)\nD = y": (f"An assignment expression (:=) {NOT}", "y := accum"),
    "D: float\nD = accum": ("An annotation without a value does nothing.", "D: float"),
    "D = accum\nreturn D\nreturn D": ("There is a second return.", "return D"),
    "D = accum\nreturn D\nE = accum": ("There is a statement after the return.", "E = accum"),
    "return": ("The return returns nothing.", "return"),
    "return None": ("None cannot be a value of an epilogue.", "None"),
    "return [accum]": ("The epilogue returns a list.", "[accum]"),
    "D = accum\nreturn {'D': D}": ("The epilogue returns a dict.", "{'D': D}"),
    "D = accum\nreturn D, D": ("'D' is returned twice.", "D"),
    "D = accum\nreturn D, F": ("'F' is not assigned in the epilogue function.", "F"),
    "D = accum\nreturn D, relu(accum)": ("Only names can be returned where several values are.", "relu(accum)"),
    "D = accum\nreturn D, *xs": ("Only names can be returned where several values are.", "*xs"),
    "D = accum\nreturn accum > 0.0": ("Variable 'D' cannot be defined twice.", "accum > 0.0"),
    "return accum > 0.0": ("A comparison cannot be returned.", "accum > 0.0"),
    "D = accum > 0.0": ("A comparison cannot be returned.", "D"),
    "D = accum + '1.5'": ("A string cannot be a value of an epilogue.", "'1.5'"),
    "D = accum + True": ("True cannot be a value of an epilogue.", "True"),
    "D = accum + None": ("None cannot be a value of an epilogue.", "None"),
    "D = accum + 1j": ("A complex number cannot be a value of an epilogue.", "1j"),
    "D = accum + ...": ("Ellipsis cannot be a value of an epilogue.", "..."),
    "D = accum + b'1'": ("A bytes string cannot be a value of an epilogue.", "b'1'"),
    "D = accum + f'{bias}'": (f"An f-string {NOT}", "f'{bias}'"),
    "D = accum + float('inf')": ("'float' is not defined.", "float"),
    "D = accum + 1 / 0": ("This arithmetic of numbers fails: division by zero.", "1 / 0"),
    "D = accum + 10 ** 10 ** 10": ("This arithmetic of numbers fails: the result is too large.", "10 ** 10 ** 10"),
    "D = accum * (-8) ** 0.5": ("This arithmetic of numbers fails: the result is complex.", "(-8) ** 0.5"),
    "D = accum * math.sqrt(-1.0)": ("This arithmetic of numbers fails: math domain error.", "math.sqrt(-1.0)"),
    "D = accum // 2": (f"The operator '//' {NOT}", "accum // 2"),
    "D = accum % 2": (f"The operator '%' {NOT}", "accum % 2"),
    "D = accum @ bias": (f"The operator '@' {NOT}", "accum @ bias"),
    "D = accum | bias": (f"The operator '|' {NOT}", "accum | bias"),
    "D = accum << 1": (f"The operator '<<' {NOT}", "accum << 1"),
    "D = ~accum": (f"The operator '~' {NOT}", "~accum"),
    "D = not accum": (f"The operator 'not' {NOT}", "not accum"),
    "D = accum and bias": (f"The operator 'and' {NOT}", "accum and bias"),
    "D = accum in bias": (f"The operator 'in' {NOT}", "accum in bias"),
    "D = where(accum is bias, 1.0, 0.0)": (f"The operator 'is' {NOT}", "accum is bias"),
    "D = where(0.0 < accum < 1.0, 1.0, 0.0)": (f"A chained comparison {NOT}", "0.0 < accum < 1.0"),
    "D = (accum > 0.0) * 2.0": ("A comparison can only be the condition of where.", "accum > 0.0"),
    "c = accum > 0.0\nD = relu(c)": ("A comparison can only be the condition of where.", "c"),
    "D = where(accum, c, 0.0)\nc = bias": ("Variable 'c' is used before it is assigned.", "c"),
    "D = where(accum, 1.0, 0.0)": ("The condition of where is not a comparison.", "accum"),
    "D = where(1.0, accum, 0.0)": ("The condition of where is a number.", "1.0"),
    "D = accum if bias else 0.0": (f"A conditional expression {NOT}", "accum if bias else 0.0"),
    "D = accum[0]": (f"A subscript {NOT}", "accum[0]"),
    "D = accum.T": (f"Attribute access (.T) {NOT}", "accum.T"),
    "D = accum.relu": (f"Attribute access (.relu) {NOT}", "accum.relu"),
    "D = accum.real.relu()": (f"Attribute access (.real) {NOT}", "accum.real"),
    "D = [accum]": (f"A list {NOT}", "[accum]"),
    "D = {accum}": (f"A set {NOT}", "{accum}"),
    "D = {1: accum}": (f"A dict {NOT}", "{1: accum}"),
    "D = [x for x in xs]": (f"A list comprehension {NOT}", "[x for x in xs]"),
    "D = sum(x for x in xs)": (f"A generator expression {NOT}", "(x for x in xs)"),
    "D = yield accum": (f"A 'yield' {NOT}", "yield accum"),
    "D = await accum": (f"An 'await' {NOT}", "await accum"),
    "D = accum, bias": (f"A tuple {NOT}", "accum, bias"),
    "D, F = accum": ("2 names stand before 1 value.", "D, F"),
    "D, F = accum, bias, accum": ("2 names stand before 3 values.", "accum, bias, accum"),
    "(D, (F, G)) = accum, bias": ("2 names stand before 1 value.", "(F, G)"),
    "D, F = accum, (bias, accum)": (f"A tuple {NOT}", "(bias, accum)"),
    "D = (F, G) = accum": ("2 names stand before 1 value.", "(F, G)"),
    "D, *F = accum, bias": (f"A starred expression {NOT}", "*F"),
    "[D, F] = accum, bias": (f"A tuple {NOT}", "accum, bias"),
    "D[0] = accum": ("Assignment to a subscript: only names can be assigned.", "D[0]"),
    "D.x = accum": ("Assignment to attribute access: only names can be assigned.", "D.x"),
    "D.x += accum": ("Assignment to attribute access: only names can be assigned.", "D.x += accum"),
    "D = t + 1.0\nt = accum": ("Variable 't' is used before it is assigned.", "t"),
    "D = D + accum": ("Variable 'D' is used before it is assigned.", "D"),
    "D = accum ** bias": ("The exponent of ** must be a number.", "bias"),
    "D = 2.0 ** accum": ("The exponent of ** must be a number.", "accum"),
    "D = pow(accum, bias)": ("exponent of pow must be a number that the function itself holds.", "bias"),
    "D = gelo(accum)": ("'gelo' is not defined.", "gelo"),
    "D = bias + tmp": ("'tmp' is not defined.", "tmp"),
    "D = relu": ("'relu' is an operation, which cannot be a value of an epilogue.", "relu"),
    "D = torch.float16": (
        "'torch.float16' is a dtype (float16), which cannot be a value of an epilogue.",
        "torch.float16",
    ),
    "D = bias(accum)": ("'bias' is a value of the epilogue and cannot be called.", "bias"),
    "D = relu(accum)(bias)": ("The result of a call cannot be called.", "relu(accum)"),
    "D = relu()": ("relu() lacks its argument 'x'.", "relu()"),
    "D = relu(accum, bias)": ("relu() takes 1 argument, 2 were given.", "bias"),
    "D = relu(x=accum, y=bias)": ("relu() has no argument 'y'.", "y=bias"),
    "D = relu(accum, x=bias)": ("relu() is given 'x' twice.", "x=bias"),
    "D = relu(input=accum)": ("relu() has no argument 'input'.", "input=accum"),
    "D = F.relu(accum, inplace=True)": ("relu() has no argument 'inplace'.", "inplace=True"),
    "D = torch.add(accum, bias, alpha=2)": ("add() has no argument 'alpha'.", "alpha=2"),
    "D = gelu(accum, aproximate='tanh')": (
        "gelu() has no argument 'aproximate' (did you mean approximate?).",
        "aproximate='tanh'",
    ),
    "D = gelu(accum, approximate='fast')": ("approximate of gelu must be 'none' or 'tanh', not 'fast'.", "'fast'"),
    "D = gelu(accum, approximate=bias)": ("approximate of gelu must be known when the function is parsed.", "bias"),
    "D = clamp(accum)": ("clamp() needs min or max.", "clamp(accum)"),
    "D = relu(*xs)": (f"A starred expression {NOT}", "*xs"),
    "D = relu(**xs)": (f"A call with ** {NOT}", "xs"),
    "D = accum.foo()": ("'.foo()' is not an operation of the vocabulary.", "accum.foo"),
    "D = accum.to('cuda')": ("The dtype of cast is not known.", "'cuda'"),
    "D = accum.to(bias)": ("The dtype of cast is not known.", "bias"),
    "D = max(accum, 0.0)": ("max(x) is a reduction; use maximum(a, b).", "max(accum, 0.0)"),
    "D = min(accum, bias)": ("min(x) is a reduction; use minimum(a, b).", "min(accum, bias)"),
    "D = max(accum, 0)": ("max(x) is a reduction; use maximum(a, b).", "max(accum, 0)"),
    "D = torch.max(accum, bias)": ("max(x) is a reduction; use maximum(a, b).", "torch.max(accum, bias)"),
    "D = sum(accum, dim=1.5)": ("The dimensions of sum must be an int or a tuple of ints.", "1.5"),
    "D = sum(accum, dim=True)": ("The dimensions of sum must be an int or a tuple of ints.", "True"),
    "D = sum(accum, dim=bias)": ("The dimensions of sum must be an int or a tuple of ints.", "bias"),
    "D = sum(accum, dim=0, keepdim=1)": ("keepdim of sum must be None or False or True, not 1.", "1"),
    "s = sum(accum)\nD = accum / s": ("The result of sum(...) cannot be used in another operation.", "s"),
    "s = sum(accum) + 1.0\nD = accum": ("The result of sum(...) cannot be used in another operation.", "sum(accum)"),
    "s = max(accum, dim=1)\nu = s + 1.0\nD = accum": (
        "The result of max(...) cannot be used in another operation.",
        "s",
    ),
    "D = -sum(accum)": ("The result of sum(...) cannot be used in another operation.", "sum(accum)"),
    "D = +sum(accum)": ("The result of sum(...) cannot be used in another operation.", "sum(accum)"),
    "D = sum(sum(accum, dim=0))": ("The result of sum(...) cannot be used in another operation.", "sum(accum, dim=0)"),
    "D = identity(mean(accum))": ("The result of mean(...) cannot be used in another operation.", "mean(accum)"),
}


def refused(function) -> EpilogueError:
    """The error that ``function`` raises."""
    with pytest.raises(EpilogueError) as caught:
        parse(function)
    return caught.value


@pytest.mark.parametrize("body", REFUSED)
def test_refused_with_line_and_caret(body):
    sentence, under = REFUSED[body]
    lines = program(body if "return" in body else f"{body}\nreturn D").splitlines()
    error = refused("\n".join(lines))
    assert error.sentence == sentence
    place = error.place
    assert place.text == lines[place.line - 1]
    assert place.text[place.column : place.end_column] == under
    assert error.hint
    assert isinstance(error, SyntaxError)
    assert (error.lineno, error.offset, error.end_offset) == (place.line, place.column + 1, place.end_column + 1)


LINES = {
    "D = relu(accum)\nD += accum": 3,
    "t = accum * bias\nt += bias\nD = relu(t)": 3,
    "D = accum\nD = accum * 2.0": 3,
    "D = accum\nreturn D\nreturn D": 4,
    "D = accum\nreturn D\nE = accum": 4,
    "s = sum(accum)\nD = accum / s": 3,
    "s = max(accum, dim=1)\nu = s + 1.0\nD = accum": 3,
    "D = accum > 0.0": 3,
}


@pytest.mark.parametrize("body", LINES)
def test_refused_line_numbers(body):
    assert refused(program(body if "return" in body else f"{body}\nreturn D")).place.line == LINES[body]


KINDS = {
    "D = accum\nD = bias\nreturn D": SsaError,
    "D = accum\nD += bias\nreturn D": SsaError,
    "D = accum / sum(accum)\nreturn D": ReductionUseError,
    "D = gelo(accum)\nreturn D": UnknownNameError,
    "D = t\nt = accum\nreturn D": UnknownNameError,
    "D = accum // 2\nreturn D": EpilogueSyntaxError,
}


@pytest.mark.parametrize("body", KINDS)
def test_error_classes(body):
    error = refused(program(body))
    assert type(error) is KINDS[body]
    assert isinstance(error, ValueError)
    assert isinstance(error, SyntaxError)
    assert not isinstance(error, SourceError)


SIGNATURES = {
    "def epi(accum, *args): D = accum; return D": (
        "The parameter *args is not part of the epilogue's language.",
        "args",
    ),
    "def epi(accum, **kw): D = accum; return D": ("The parameter **kw is not part of the epilogue's language.", "kw"),
    "def epi(accum, a, a): D = accum; return D": ("Variable 'a' cannot be defined twice.", "a"),
    "def epi(accum=1.0): D = accum; return D": ("accum has a default.", "accum"),
    "def epi(accum, b=None): D = accum; return D": ("The default of 'b' is not a number.", "b"),
    "def epi(accum, b='x'): D = accum; return D": ("The default of 'b' is not a number.", "b"),
    "def epi(accum, b=True): D = accum; return D": ("The default of 'b' is not a number.", "b"),
    "def epi(accum, b=c): D = accum; return D": ("The default of 'b' in a text must be a number.", "b"),
    "def epi(): D = 1.0; return D": ("accum must be an input to the epilogue function", "def epi(): D = 1.0; return D"),
    "def epi(a, C): D = a; return D": (
        "accum must be an input to the epilogue function",
        "def epi(a, C): D = a; return D",
    ),
    "def epi(a, accum): D = a; return D": (
        "accum must be an input to the epilogue function, and its first parameter.",
        "accum",
    ),
    "def epi(accum): F = accum; return F": ("Output node D is not found in the epilogue function.", "F"),
    "def epi(accum): return accum": ("Output node D is not found in the epilogue function.", "accum"),
    "def epi(accum): return ()": ("Output node D is not found in the epilogue function.", "()"),
    "lambda accum, C: (accum, C)": ("A lambda gives one output, D, and this one returns a tuple.", "(accum, C)"),
    "lambda accum: (relu(accum), accum)": (
        "A lambda gives one output, D, and this one returns a tuple.",
        "(relu(accum), accum)",
    ),
    "def epi(accum): D = accum; return D, relu(D)": (
        "Only names can be returned where several values are.",
        "relu(D)",
    ),
    "lambda accum, D: accum + D": ("Variable 'D' cannot be defined twice.", "accum + D"),
    "def epi(accum): D = accum": ("The epilogue function returns nothing.", "def epi(accum): D = accum"),
    "def epi(accum): 'only a docstring'": (
        "The epilogue function returns nothing.",
        "def epi(accum): 'only a docstring'",
    ),
}


@pytest.mark.parametrize("text", SIGNATURES)
def test_signatures_and_outputs(text):
    sentence, under = SIGNATURES[text]
    error = refused(text)
    assert error.sentence == sentence
    assert str(error).startswith(sentence)
    assert error.place.text[error.place.column : error.place.end_column] == under


def test_whole_messages():
    assert str(refused("def epi(accum):\n    D = relu(accum)\n    D += accum\n    return D")) == (
        "Variable 'D' cannot be defined twice. ('+=' defines it again.)\n"
        '  File "<epilogue>", line 3\n'
        "    D += accum\n"
        "    ^^^^^^^^^^\n"
        "Every name is assigned once (SSA): write `D2 = D + ...` and go on with the fresh name."
    )
    assert str(
        refused("\n\n  def epi(accum, s):\n     D = where(\n         accum > 0,\n         sum(s), 0.0)\n     return D")
    ) == (
        "The result of sum(...) cannot be used in another operation.\n"
        '  File "<epilogue>", line 6\n'
        "    sum(s), 0.0)\n"
        "    ^^^^^^\n"
        "A reduction's result can only be returned; do the rest of the arithmetic after the GEMM."
    )
    assert str(refused("def epi(accum):\r\n\tD = max(accum, 0.0)\r\n\treturn D\r\n")) == (
        "max(x) is a reduction; use maximum(a, b).\n"
        '  File "<epilogue>", line 2\n'
        "    D = max(accum, 0.0)\n"
        "        ^^^^^^^^^^^^^^^\n"
        "For a reduction over one dimension name it: max(x, dim=1)."
    )
    assert str(refused("def epi(accum): é = accum; D = é % 2.0; return D")) == (
        "The operator '%' is not part of the epilogue's language.\n"
        '  File "<epilogue>", line 1\n'
        "    def epi(accum): é = accum; D = é % 2.0; return D\n"
        "                                   ^^^^^^^\n"
        "Use a - floor(a / b) * b."
    )
    assert str(refused("def epi(accum): D = gelu(accum, tanh=True); return D")) == (
        "gelu() has no argument 'tanh'.\n"
        '  File "<epilogue>", line 1\n'
        "    def epi(accum): D = gelu(accum, tanh=True); return D\n"
        "                                    ^^^^^^^^^\n"
        "Its signature is gelu(x, approximate='none')."
    )
    assert str(refused("def epi(accum)\n    return accum")) == (
        "The text of the epilogue is not Python: expected ':'.\n"
        '  File "<epilogue>", line 1\n'
        "    def epi(accum)\n"
        "                  ^\n"
        "Accepted: docstring, assignments to fresh names, + - * / **, unary minus, vocabulary calls, one return."
    )


def test_unknown_operations_list_the_nearest_and_all():
    text = str(refused("def epi(accum): D = leakyrelu(accum); return D"))
    assert "Did you mean leaky_relu or " in text
    assert all(f" {name}," in text.partition("Operations:")[2] for name in ("add", "where", "gelu", "sum"))
    assert "A text knows the vocabulary, torch, F, nn and math alone." in text


@pytest.mark.parametrize(
    ("value", "advice"),
    [
        ("accum.gelu()", "Write gelu(x)."),
        ("torch.softmax(accum, 1)", "do the rest after the GEMM"),
        ("F.dropout(accum)", "Pass the mask as an operand"),
        ("accum.view(3)", "before the call"),
        ("accum.T", "before the call"),
        ("accum.real", "Attributes are read of modules only"),
    ],
)
def test_what_is_often_tried_is_answered_with_what_to_write(value, advice):
    text = str(refused(f"def epi(accum): D = {value}; return D"))
    assert advice in text
    assert "Operations:" not in text


def test_functions_show_the_users_own_line():
    def epi(accum, bias):
        t = accum + bias
        t = t * 2.0
        return t

    error = refused(epi)
    assert error.sentence == "Variable 't' cannot be defined twice."
    assert error.place.file == __file__
    assert error.place.line == epi.__code__.co_firstlineno + 2
    assert str(error).splitlines()[1:4] == [
        f'  File "{__file__}", line {error.place.line}',
        "    t = t * 2.0",
        "    ^",
    ]


def test_errors_are_raised_again_each_time():
    for _ in range(3):
        assert refused("def epi(accum): D = accum // 2; return D").place.line == 1


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("def epi(accum): return accum", "write `D = accum`, then `return D`"),
        ("def epi(accum): F = accum; return F", "here F. Assign the main output to D"),
        ("def epi(accum): return ()", "or return one expression, which is D"),
    ],
)
def test_a_missing_d_comes_with_what_to_write(text, advice):
    assert advice in str(refused(text))


def test_a_dtype_that_there_is_not_comes_with_those_like_it():
    error = refused("def epi(accum): D = cast(accum, torch.float61); return D")
    assert error.sentence == "'torch.float61' does not exist."
    assert "Did you mean float64 or float16 or" in str(error)
