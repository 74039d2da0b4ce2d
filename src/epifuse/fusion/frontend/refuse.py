# SPDX-License-Identifier: Apache-2.0
"""What the front end says of each construct that the epilogue's language does not have."""

from __future__ import annotations

import ast
import difflib
import textwrap
from collections.abc import Iterable, Sequence

from epifuse.fusion.vocabulary import table

ONE_DEF = "Pass one function: a def, a lambda, or the text of one def."
ASYNC = "An epilogue cannot be an async function."
TOO_DEEP = "The epilogue's expressions are nested too deeply for Python's parser."
SPLIT = "Split the expression: assign parts of it to names."
RETURN_NAMES = "Assign it to a name of its own and return that name: `D = ...`, then `return D`."
NO_BRANCH = "Every element runs the same operations: use where(condition, a, b)."
NO_LOOP = "Write the operations out, or build the text of the function in Python."
NO_EFFECT = "Accepted statements: assignments to fresh names, then one return of names."
FRESH = "Every name is assigned once (SSA): write `{0}2 = {0} {1} ...` and go on with the fresh name."
ONE_EACH = "Give each name one value: `a, b = x, y`."
USE_WHERE = "Use where(condition, a, b), nested for several conditions."

OPERATORS: dict[type[ast.AST], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.MatMult: "@",
    ast.BitOr: "|",
    ast.BitAnd: "&",
    ast.BitXor: "^",
    ast.LShift: "<<",
    ast.RShift: ">>",
    ast.Pow: "**",
    ast.Not: "not",
    ast.Invert: "~",
    ast.And: "and",
    ast.Or: "or",
    ast.Is: "is",
    ast.IsNot: "is not",
    ast.In: "in",
    ast.NotIn: "not in",
}

OPERATOR_ADVICE: dict[type[ast.AST], str] = {
    ast.FloorDiv: "Use floor(a / b).",
    ast.Mod: "Use a - floor(a / b) * b.",
    ast.MatMult: "An epilogue works element by element; the product is the GEMM itself.",
    ast.BitOr: USE_WHERE,
    ast.BitAnd: USE_WHERE,
    ast.BitXor: USE_WHERE,
    ast.Not: USE_WHERE,
    ast.Invert: USE_WHERE,
    ast.And: USE_WHERE,
    ast.Or: USE_WHERE,
}

_STATEMENTS: dict[type[ast.AST], tuple[str, str]] = {
    ast.If: ("an 'if' statement", NO_BRANCH),
    ast.For: ("a 'for' loop", NO_LOOP),
    ast.AsyncFor: ("an 'async for' loop", NO_LOOP),
    ast.While: ("a 'while' loop", NO_LOOP),
    ast.With: ("a 'with' statement", NO_EFFECT),
    ast.AsyncWith: ("an 'async with' statement", NO_EFFECT),
    ast.Try: ("a 'try' statement", NO_EFFECT),
    ast.TryStar: ("a 'try' statement", NO_EFFECT),
    ast.Match: ("a 'match' statement", NO_BRANCH),
    ast.Assert: ("an 'assert' statement", "Check operands before the call."),
    ast.Delete: ("a 'del' statement", "Names need no release: what nothing uses is removed."),
    ast.Global: ("a 'global' statement", NO_EFFECT),
    ast.Nonlocal: ("a 'nonlocal' statement", NO_EFFECT),
    ast.Import: ("an 'import' statement", "Import outside of the epilogue."),
    ast.ImportFrom: ("an 'import' statement", "Import outside of the epilogue."),
    ast.Pass: ("a 'pass' statement", NO_EFFECT),
    ast.Raise: ("a 'raise' statement", "Check operands before the call."),
    ast.Break: ("a 'break' statement", NO_LOOP),
    ast.Continue: ("a 'continue' statement", NO_LOOP),
    ast.FunctionDef: ("a nested function", "Define it outside of the epilogue: plain functions are inlined."),
    ast.AsyncFunctionDef: ("a nested async function", NO_EFFECT),
    ast.ClassDef: ("a class", NO_EFFECT),
    ast.Expr: ("an expression whose value is not used", NO_EFFECT),
    ast.Return: ("a 'return' statement", NO_EFFECT),
    ast.Assign: ("an assignment", NO_EFFECT),
    ast.AugAssign: ("an augmented assignment", NO_EFFECT),
    ast.AnnAssign: ("an annotated assignment", NO_EFFECT),
}

_EXPRESSIONS: dict[type[ast.AST], tuple[str, str]] = {
    ast.IfExp: ("a conditional expression", NO_BRANCH),
    ast.BoolOp: ("a boolean expression", USE_WHERE),
    ast.Subscript: ("a subscript", "Slice operands before the call; an epilogue works on whole tensors."),
    ast.Attribute: ("attribute access", "Attributes are read of modules only: torch.relu, F.gelu, math.pi."),
    ast.JoinedStr: ("an f-string", "Numbers and operands are the only values."),
    ast.Lambda: ("an inner lambda", "Define it outside of the epilogue: plain functions are inlined."),
    ast.NamedExpr: ("an assignment expression (:=)", "Assign on a line of its own."),
    ast.ListComp: ("a list comprehension", NO_LOOP),
    ast.SetComp: ("a set comprehension", NO_LOOP),
    ast.DictComp: ("a dict comprehension", NO_LOOP),
    ast.GeneratorExp: ("a generator expression", NO_LOOP),
    ast.Starred: ("a starred expression", "Write the values out."),
    ast.Tuple: ("a tuple", "A tuple stands only in `a, b = x, y` and in `return D, F`."),
    ast.List: ("a list", "Numbers and operands are the only values."),
    ast.Dict: ("a dict", "Numbers and operands are the only values."),
    ast.Set: ("a set", "Numbers and operands are the only values."),
    ast.Yield: ("a 'yield'", "An epilogue returns its outputs: it cannot be a generator."),
    ast.YieldFrom: ("a 'yield'", "An epilogue returns its outputs: it cannot be a generator."),
    ast.Await: ("an 'await'", "An epilogue cannot wait."),
    ast.Call: ("the result of a call", "Call operations by name."),
    ast.Constant: ("a constant", "Call operations by name."),
    ast.BinOp: ("an arithmetic expression", "Call operations by name."),
    ast.UnaryOp: ("an arithmetic expression", "Call operations by name."),
    ast.Compare: ("a comparison", "Call operations by name."),
    ast.Slice: ("a slice", "Slice operands before the call."),
}


_AFTERWARDS = "It needs whole rows: return reductions (amax, sum) beside D, and do the rest after the GEMM."
_MOMENTS = "Return sum(x) and sum(x * x) beside D, and do the rest after the GEMM."
_SHAPES = "Give operands their shape before the call."

_INSTEAD: dict[str, str] = {
    **dict.fromkeys(("softmax", "log_softmax", "logsumexp", "layer_norm", "rms_norm", "normalize"), _AFTERWARDS),
    **dict.fromkeys(("norm", "var", "std"), _MOMENTS),
    **dict.fromkeys(("view", "reshape", "transpose", "permute", "t", "T", "mT", "unsqueeze", "squeeze"), _SHAPES),
    "item": "A number is passed as it is: alpha=0.5.",
    "dropout": "Pass the mask as an operand: where(mask, x * scale, 0.0).",
}
"""What to write for a name that is often tried and that no operation is like."""

_WIDTH = 100


def main_output(returned: Sequence[str]) -> str:
    """What to write where none of the returned names is D."""
    if len(returned) == 1 and returned[0] == "accum":
        return "A returned name is that of an output: write `D = accum`, then `return D`."
    here = f", here {', '.join(returned)}" if returned else ""
    return (
        f"A returned name is that of an output{here}. Assign the main output to D and return it: "
        "`D = ...`, then `return D`; or return one expression, which is D."
    )


def name_of(node: ast.AST) -> str:
    """The construct in the words of a message, with an article."""
    return describe(node)[0]


def describe(node: ast.AST) -> tuple[str, str]:
    """The construct's name with an article, and what to write instead."""
    found = _STATEMENTS.get(type(node)) or _EXPRESSIONS.get(type(node))
    if found is None:
        return f"a construct ({type(node).__name__})", NO_EFFECT
    return found


def instead_of(name: str) -> str | None:
    """What to write in place of a name that is often tried; None where nothing is known."""
    return _INSTEAD.get(name)


def nearest(name: str, others: Iterable[str] = ()) -> str:
    """What to write in place of ``name``: what is known of it, or names like it and the whole vocabulary."""
    instead = instead_of(name)
    if instead is not None:
        return instead
    known = [row.name for row in table.rows()]
    close = difflib.get_close_matches(name, [*others, *known], n=3, cutoff=0.6)
    if not close:
        close = difflib.get_close_matches(name.lower(), known, n=3, cutoff=0.6)
    start = f"Did you mean {' or '.join(dict.fromkeys(close))}?\n" if close else ""
    return start + textwrap.fill(f"Operations: {', '.join(known)}.", _WIDTH, subsequent_indent="  ")
