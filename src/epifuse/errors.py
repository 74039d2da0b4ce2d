# SPDX-License-Identifier: Apache-2.0
"""Every error class of epifuse: one class per kind of mistake, its advice as a class attribute.

An error is a sentence with a place and a way out. ``str(error)`` is the whole text: what was found, the user's
line with a caret where there is one, what is accepted, and what to do.
"""

from __future__ import annotations

from typing import ClassVar

from epifuse.records import dataclass


@dataclass(frozen=True, slots=True)
class Place:
    """A span of the user's source: 1-based ``line``, 0-based ``column`` .. ``end_column``, and the line's text."""

    line: int
    column: int
    end_column: int
    text: str = ""
    file: str = "<epilogue>"

    def draw(self) -> str:
        """The line with a caret under the span, for a terminal."""
        code = self.text.rstrip("\n")
        indent = len(code) - len(code.lstrip())
        width = max(1, min(self.end_column, len(code)) - self.column)
        number = str(self.line)
        caret = " " * max(0, self.column - indent) + "^" * width
        return f'  File "{self.file}", line {number}\n    {code[indent:]}\n    {caret}'


class EpifuseError(Exception):
    """Base of all errors raised by epifuse.

    ``sentence`` says what is wrong, ``place`` where in the user's source (or None), ``advice`` what to do instead.
    """

    advice: ClassVar[str] = "See the message above."

    def __init__(self, sentence: str, *, place: Place | None = None, advice: str | None = None) -> None:
        self.sentence = sentence
        self.place = place
        self.hint = type(self).advice if advice is None else advice
        super().__init__(sentence)

    def __str__(self) -> str:
        parts = [self.sentence]
        if self.place is not None:
            parts.append(self.place.draw())
        if self.hint:
            parts.append(self.hint)
        return "\n".join(parts)

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.sentence, self.place, self.hint))


def _rebuild(cls: type[EpifuseError], sentence: str, place: Place | None, hint: str) -> EpifuseError:
    return cls(sentence, place=place, advice=hint)


class EpilogueError(EpifuseError, ValueError):
    """Something about the epilogue function or its operands cannot be accepted."""

    advice = "Write the epilogue as assignments of expressions to fresh names, then one return of names."


class EpilogueSyntaxError(EpilogueError, SyntaxError):
    """A construct outside the epilogue language. Carries ``lineno``, ``offset`` and ``text`` as Python's own does."""

    advice = "Accepted: docstring, assignments to fresh names, + - * / **, unary minus, vocabulary calls, one return."

    def __init__(self, sentence: str, *, place: Place | None = None, advice: str | None = None) -> None:
        super().__init__(sentence, place=place, advice=advice)
        self.msg = sentence if not self.hint else f"{sentence}\n{self.hint}"
        if place is not None:
            self.filename, self.lineno, self.text = place.file, place.line, place.text
            self.offset, self.end_offset = place.column + 1, place.end_column + 1
            self.end_lineno = place.line


class SsaError(EpilogueSyntaxError):
    """A name is assigned twice."""

    advice = "Every name is assigned once: give the second value a fresh name."


class UnknownNameError(EpilogueSyntaxError):
    """A name or call that is neither an operand, a number, an operation of the vocabulary nor a plain function."""

    advice = "`python -m epifuse doctor --vocabulary` lists the operations."


class ReductionUseError(EpilogueSyntaxError):
    """The result of a reduction is used as an operand of another operation."""

    advice = "A reduction's result can only be returned; do the rest of the arithmetic after the GEMM."


class SourceError(EpilogueError, OSError):
    """The source of the epilogue function cannot be had."""

    advice = "Pass the function's text instead: EpilogueArguments('def epi(accum): ...', ...)."


class OperandError(EpilogueError):
    """An operand or output of the epilogue is missing, unexpected, or of a shape or dtype that cannot be bound."""

    advice = "Pass every parameter after accum and every returned name as a keyword, with a shape that broadcasts."


class OperandTypeError(EpifuseError, TypeError):
    """A value of a type that epifuse cannot use was given where a tensor, number or dtype is expected."""

    advice = "Pass a torch tensor, a numpy array, an object with DLPack, or a Python number."


class ShapeError(EpifuseError, ValueError):
    """Shapes of A, B, out or an output disagree."""

    advice = "Expected A (M,K) or (L,M,K), B (K,N) or (L,K,N), out (M,N) or (L,M,N)."


class OverlapError(EpifuseError, ValueError):
    """An output shares memory with itself, another output, or an operand that is still to be read."""

    advice = "Give each output memory of its own (an epilogue operand may be the very same view as an output)."


class DtypeError(EpifuseError, TypeError):
    """A dtype that epifuse does not know, or a combination that no operator can honour."""

    advice = "Known dtypes: `epifuse.dtypes.TABLE`."


class UnsupportedError(EpifuseError, ValueError):
    """An operator does not support the arguments it was asked about.

    ``subject`` names the operation or operand that it stumbles over, so that ``explain`` can show the user's line.
    """

    advice = "Ask get_operators(args) for one that does, or explain(args) for the reasons."

    def __init__(
        self,
        sentence: str,
        *,
        place: Place | None = None,
        advice: str | None = None,
        subject: str | None = None,
    ) -> None:
        super().__init__(sentence, place=place, advice=advice)
        self.subject = subject


class TargetError(EpifuseError, ValueError):
    """A target string or capability that is not valid, or a kernel asked to run on another architecture."""

    advice = (
        "Write the compute capability without its dot, and the suffix of that GPU: '80' (A100), '86' (GeForce RTX 30), "
        "'89' (L40S, GeForce RTX 40), '90a' (H100, H200), '100a' (B200), '103a' (B300), '120a' (GeForce RTX 50)."
    )


class SettingError(EpifuseError, ValueError):
    """An environment variable holds a value that its row in ``settings`` does not accept."""

    advice = "`python -m epifuse doctor` lists the settings and what each accepts."


class IrError(EpifuseError, AssertionError):
    """A pass of epifuse left a graph that breaks a rule of its level: our mistake, never the user's."""

    advice = "This is a fault of epifuse; please report the epilogue that shows it."


class BroadcastWarning(UserWarning):
    """A vector (M,) was taken as a column because its length is M and not N; (M,1) says so without doubt."""


class ProviderWarning(RuntimeWarning):
    """A provider or one of its families raised while it was asked for operators, and was left out."""
