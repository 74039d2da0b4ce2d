# SPDX-License-Identifier: Apache-2.0
"""Discovery: which operators serve given arguments, best first, and why the others do not."""

from __future__ import annotations

import reprlib
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from epifuse.arguments import GemmArguments, RuntimeArguments
from epifuse.errors import OperandTypeError, Place, UnsupportedError
from epifuse.operator import MetadataFilter, Operator
from epifuse.provider import Provider, available_providers, failure, left_out
from epifuse.runtime import winners
from epifuse.runtime.rounding import tf32_allowed
from epifuse.status import Status
from epifuse.target import TargetLike, TargetSm
from epifuse.utils.device import target_of_operands

_CACHE_SIZE = 4096
_cache: OrderedDict[tuple[Any, ...], tuple[Operator, ...]] = OrderedDict()
_lock = threading.Lock()


def clear() -> None:
    """Forget all lists of operators."""
    with _lock:
        _cache.clear()


def get_operators(
    args: RuntimeArguments | None = None,
    metadata_filter: MetadataFilter | None = None,
    target_sm: TargetLike = None,
    providers: Iterable[type[Provider]] | None = None,
    limit: int | None = None,
) -> list[Operator]:
    """Operators that match, best first; an empty list where there are none (``explain`` says why).

    Args:
        args: what is to be computed; None: everything that is registered.
        metadata_filter: called with each operator's metadata.
        target_sm: a GPU target such as ``"90a"``. None: that of the operands' device; CPU tensors mean the CPU, or
            the emulated GPU inside ``emulator.device``.
        providers: only these.
        limit: at most so many.

    The order is that of predicted times, behind what ``epifuse.tune`` found fastest on the operands' GPU.

    A family that raises is left out, with a ``ProviderWarning``.

    Raises:
        OperandTypeError: (a TypeError) ``args`` are no arguments, ``metadata_filter`` no function, ``providers`` no
            providers, ``limit`` no number.
    """
    _check_arguments(args)
    _check_filter(metadata_filter)
    if limit is not None and (type(limit) is not int or limit < 0):
        raise OperandTypeError(f"limit is {limit!r}.", advice="Pass how many operators to return at most, or None.")
    target = resolve_target(args, TargetSm.ensure(target_sm))
    chosen = tuple(available_providers.values()) if providers is None else _chosen(providers)
    found: Sequence[Operator]
    if args is None:
        found = [
            op
            for op in _generated(None, target, chosen)
            if target is None or op.metadata.supports(None, target_sm=target)
        ]
    else:
        key = _key(args, target, chosen)
        with _lock:
            cached = _cache.get(key)
        if cached is None:
            for provider in chosen:
                provider.import_families(target)
            key = _key(args, target, chosen)  # imports register families, which is a change of the providers
            cached = tuple(_matching(args, target, chosen))
            with _lock:
                _cache[key] = cached
                if len(_cache) > _CACHE_SIZE:
                    _cache.popitem(last=False)
        found = cached
    if metadata_filter is not None:
        found = _filtered(found, metadata_filter)
    return list(found if limit is None else found[:limit])


def _key(args: RuntimeArguments, target: TargetSm | None, providers: tuple[type[Provider], ...]) -> tuple[Any, ...]:
    return (args.key, target, providers, available_providers.version, tf32_allowed())


def _check_arguments(args: RuntimeArguments | None) -> None:
    if args is not None and not isinstance(args, RuntimeArguments):
        raise OperandTypeError(
            f"args is {reprlib.repr(args)} of type {type(args).__name__}.",
            advice="Pass GemmArguments(A, B, out, accumulator_type, epilogue), or other RuntimeArguments.",
        )


def _check_filter(metadata_filter: Any) -> None:
    if metadata_filter is not None and not callable(metadata_filter):
        raise OperandTypeError(
            f"metadata_filter is {reprlib.repr(metadata_filter)} of type {type(metadata_filter).__name__}.",
            advice="Pass a function that is called with an operator's metadata and says whether to keep it: "
            "lambda m: m.design is not None and m.design.tile_shape[0] == 128.",
        )


def _filtered(operators: Iterable[Operator], accept: MetadataFilter) -> list[Operator]:
    """The operators whose metadata pass; what a filter raises says for which operator."""
    found = []
    for operator in operators:
        try:
            kept = accept(operator.metadata)
        except Exception as error:
            note = f"metadata_filter was called with the metadata of {operator!r}"
            error.add_note(f"{note}, whose design is None." if operator.metadata.design is None else f"{note}.")
            raise
        if kept:
            found.append(operator)
    return found


def _chosen(providers: Iterable[type[Provider]]) -> tuple[type[Provider], ...]:
    given: Any = providers
    found = tuple(given) if isinstance(given, Iterable) and not isinstance(given, str) else None
    if found is None or not all(isinstance(p, type) and issubclass(p, Provider) for p in found):
        raise OperandTypeError(
            f"providers is {given!r}, not a list of Provider classes.",
            advice="Pass classes, such as providers=[available_providers['cpu']]; the names that are known: "
            f"{', '.join(available_providers)}.",
        )
    return found


def resolve_target(args: RuntimeArguments | None, target: TargetSm | None) -> TargetSm | None:
    """The GPU target that is meant: the given one, else that of the operands' device; None means the CPU."""
    if target is not None or not isinstance(args, GemmArguments):
        return target
    return target_of_operands(args.A.device)


def _generated(
    args: RuntimeArguments | None, target: TargetSm | None, providers: Sequence[type[Provider]]
) -> list[Operator]:
    found: list[Operator] = []
    for provider in providers:
        try:
            found += provider.generate_operators(
                metadata_filter=None, epilogue_args=getattr(args, "epilogue", None), target_sm=target, args=args
            )
        except Exception as error:  # noqa: BLE001 - one provider's fault must not hide what the others offer
            left_out(provider, error)
    return found


def _matching(args: RuntimeArguments, target: TargetSm | None, providers: Sequence[type[Provider]]) -> list[Operator]:
    fitting = []
    times = []
    for operator in _generated(args, target, providers):
        try:
            if operator.supports(args, target):
                predicted = operator._estimate_us(args, target)
                times.append(None if predicted is None else float(predicted))
                fitting.append(operator)
        except Exception as error:  # noqa: BLE001 - as above
            left_out(type(operator), error)
    return _winner_first(args, rank(fitting, times))


def _winner_first(args: RuntimeArguments, operators: list[Operator]) -> list[Operator]:
    """With the operator first that ``tune`` found fastest, where it was asked about arguments like these."""
    found = winners.recall(args, [operator.metadata.operator_name for operator in operators])
    if found is not None:
        operators.sort(key=lambda operator: operator.metadata.operator_name != found.operator_name)
    return operators


def rank(operators: Sequence[Operator], times: Sequence[float | None]) -> list[Operator]:
    """Order by predicted time; operators that predict nothing keep their order, behind the others."""
    order = sorted(range(len(operators)), key=lambda i: (times[i] is None, times[i] or 0.0, i))
    return [operators[i] for i in order]


@dataclass(frozen=True, slots=True)
class Row:
    """One operator family's answer: how many operators it offers and the one that is predicted to be the fastest of
    them, or why none."""

    provider: str
    family: str
    status: Status
    operators: int
    place: Place | None = None
    first: str = ""

    @property
    def remark(self) -> str:
        """The first operator's name; where there is none, why."""
        return self.first if self.status else self.status.reason


REMARK = "first of them, or why none"
"""What the last column of an explanation says."""


@dataclass(frozen=True)
class Explanation:
    """``get_operators`` with every answer. ``str()`` is a table; ``bool()`` is whether there is any operator."""

    target: TargetSm | None
    rows: tuple[Row, ...]

    def __bool__(self) -> bool:
        return any(row.operators for row in self.rows)

    def __iter__(self) -> Any:
        return iter(self.rows)

    def __str__(self) -> str:
        where = "the CPU" if self.target is None else f"sm_{self.target}"
        table = [("provider", "family", "operators", REMARK)]
        for row in self.rows:
            table.append((row.provider, row.family, str(row.operators), row.remark.split("\n")[0]))
        widths = [max(len(cells[i]) for cells in table) for i in range(3)]
        lines = [f"Operators for {where}"]
        for cells in table:
            head = "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=False))
            lines.append(f"  {head}  {cells[3]}".rstrip())
        lines += [row.place.draw() for row in self.rows if row.place is not None]
        return "\n".join(lines)


def explain(
    args: RuntimeArguments, target_sm: TargetLike = None, metadata_filter: MetadataFilter | None = None
) -> Explanation:
    """``get_operators`` with every answer: per operator family how many and the first, or why none, with the user's
    source line.

    Args:
        args: what is to be computed.
        target_sm: as in ``get_operators``.
        metadata_filter: as in ``get_operators``; a family of which it keeps nothing says so.

    Raises:
        OperandTypeError: (a TypeError) ``args`` are no arguments, or ``metadata_filter`` is no function.
    """
    if args is None:
        raise OperandTypeError("args is None.", advice="Pass the arguments whose operators are to be explained.")
    _check_arguments(args)
    _check_filter(metadata_filter)
    target = resolve_target(args, TargetSm.ensure(target_sm))
    rows: list[Row] = []
    for name, provider in available_providers.items():
        families = provider.families(args)
        if not families:
            rows.append(Row(name, provider.__name__, provider._explain(args, target), 0))
        rows += [_row(name, family, args, target, metadata_filter) for family in families]
    for name, reason in available_providers.failures.items():
        rows.append(Row(name, "-", Status.fail(reason), 0))
    return Explanation(target, tuple(rows))


def _row(
    name: str,
    family: type[Operator],
    args: RuntimeArguments,
    target: TargetSm | None,
    metadata_filter: MetadataFilter | None,
) -> Row:
    if target is not None and family.designed_for_min_cc > target.cc:
        status = Status.fail(f"Made for compute capability {family.designed_for_min_cc} and later, not {target.cc}")
        return Row(name, family.__name__, status, 0)
    try:
        found, status = _supported(family, args, target)
    except Exception as error:  # noqa: BLE001 - as in _generated
        return Row(name, family.__name__, Status.fail(f"Left out: {failure(error)}"), 0)
    kept = found if metadata_filter is None else _filtered(found, metadata_filter)
    if found and not kept:
        status = Status.fail(f"metadata_filter keeps none of {len(found)} that support this")
    first = next((operator.metadata.operator_name for operator in kept), "")
    return Row(name, family.__name__, status, len(kept), _place(status, args), first)


def _supported(
    family: type[Operator], args: RuntimeArguments, target: TargetSm | None
) -> tuple[list[Operator], Status]:
    """The operators of a family that support the arguments, in the predicted order; why none."""
    operators = family.generate_operators(
        None, epilogue_args=getattr(args, "epilogue", None), target_sm=target, args=args
    )
    answers = [operator.supports(args, target) for operator in operators]
    found = [operator for operator, answer in zip(operators, answers, strict=True) if answer]
    if found:
        return rank(found, [operator._estimate_us(args, target) for operator in found]), Status.success()
    if answers:
        return [], answers[0]
    if target is None and family.designed_for_min_cc > 0:
        where = getattr(args, "device", "cpu")
        return [], Status.fail(
            f"Made for GPUs of compute capability {family.designed_for_min_cc / 10} and later; these tensors are on "
            f"{where}, and no target_sm is named"
        )
    return [], family._explain(args, target)


def _place(status: Status, args: RuntimeArguments) -> Place | None:
    """The user's source line that a refusal is about: the operation or operand that it names as its subject."""
    error = status.error
    epilogue = getattr(args, "epilogue", None)
    if not isinstance(error, UnsupportedError) or epilogue is None:
        return None
    if error.place is not None or error.subject is None:
        return error.place
    place: Place | None = epilogue.graph.place_of(error.subject)
    return place
