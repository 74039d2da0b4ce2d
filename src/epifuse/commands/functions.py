# SPDX-License-Identifier: Apache-2.0
"""Epilogue functions from files, and operands invented for them from short descriptions."""

from __future__ import annotations

import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from epifuse import dtypes
from epifuse.arguments import EpilogueArguments, GemmArguments
from epifuse.dtypes import DType
from epifuse.errors import EpilogueError
from epifuse.fusion import frontend
from epifuse.fusion.ir import infer
from epifuse.fusion.ir.graph import Graph
from epifuse.fusion.ir.node import Node

_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)(e[+-]?\d+)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Problem:
    """The GEMM around an invented epilogue. ``batch`` None: tensors of rank 2."""

    m: int
    n: int
    k: int
    batch: int | None
    dtype: DType
    accumulator: DType

    @property
    def lead(self) -> tuple[int, ...]:
        """The batch's extent, where there is one."""
        return () if self.batch is None else (self.batch,)


def problem(m: int, n: int, k: int, batch: int | None, dtype: str, accumulator: str) -> Problem:
    """The problem of these options; without ``accumulator`` one that fits the dtype.

    Raises:
        DtypeError: (a TypeError) a dtype is unknown.
    """
    element = dtypes.of(dtype)
    if not accumulator:
        accumulator = "int32" if element.is_integer else "float64" if element is dtypes.FLOAT64 else "float32"
    return Problem(m, n, k, batch, element, dtypes.of(accumulator))


def load_function(place: str) -> Callable[..., Any]:
    """The epilogue at ``FILE[:function]``; the file is imported under a name of its own.

    Without a name, the file must hold one function whose first parameter is ``accum``.

    Raises:
        EpilogueError: there is no such file, it cannot be imported, or it has no such function or more than one.
    """
    path, name = Path(place), ""
    if not path.is_file():
        file, _, name = place.rpartition(":")
        path = Path(file)
    if not path.is_file():
        raise EpilogueError(f"There is no file {place!r}.", advice="Expected FILE.py or FILE.py:function.")
    module = _import(path)
    if name:
        found = getattr(module, name, None)
        if not callable(found):
            raise EpilogueError(f"{path} has no function {name!r}.", advice=_list(_epilogues(module)))
        return found  # type: ignore[no-any-return]
    epilogues = _epilogues(module)
    if len(epilogues) != 1:
        raise EpilogueError(
            f"{path} holds {len(epilogues)} functions whose first parameter is accum; which one?",
            advice=_list(epilogues),
        )
    return next(iter(epilogues.values()))


def _import(path: Path) -> ModuleType:
    name = f"_epilogue_file_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    if spec is None or spec.loader is None:
        raise EpilogueError(f"{path} is no Python file.", advice="Expected FILE.py or FILE.py:function.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    folder = str(path.resolve().parent)
    sys.path.insert(0, folder)  # its neighbors are found as `python FILE` finds them
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise EpilogueError(
            f"{path} cannot be imported: {type(error).__name__}: {error}", advice=f"`python {path}` must work first."
        ) from error
    finally:
        sys.path.remove(folder)
    return module


def _epilogues(module: ModuleType) -> dict[str, Callable[..., Any]]:
    found: dict[str, Callable[..., Any]] = {}
    for name, value in vars(module).items():
        if inspect.isfunction(value) and value.__module__ == module.__name__:
            parameters = list(inspect.signature(value).parameters)
            if parameters[:1] == ["accum"]:
                found[name] = value
    return found


def _list(epilogues: Mapping[str, Callable[..., Any]]) -> str:
    names = ", ".join(epilogues) or "none"
    return f"Functions there whose first parameter is accum: {names}. Name one as FILE.py:function."


def parse_operands(operands: Sequence[str], extra: Sequence[str]) -> dict[str, str]:
    """Descriptions by operand name, from ``--operand name=DESCRIPTION`` and ``--name DESCRIPTION`` (or ``--name=...``).

    Raises:
        EpilogueError: one of them has not that form, or a name is given twice.
    """
    pairs = [tuple(text.partition("=")[::2]) for text in operands]
    rest = list(extra)
    while rest:
        option = rest.pop(0)
        name, equals, description = option.removeprefix("--").partition("=")
        if not option.startswith("--") or not (equals or rest):
            raise EpilogueError(
                f"{option!r} is no option.", advice="An operand is described as --bias N or --alpha 0.5."
            )
        pairs.append((name, description if equals else rest.pop(0)))
    found: dict[str, str] = {}
    for name, description in pairs:
        if not name or not description:
            raise EpilogueError(f"{name}={description} describes no operand.", advice="Expected name=M,N:float16.")
        if name in found:
            raise EpilogueError(f"Operand {name} is described twice.", advice="")
        found[name.replace("-", "_")] = description
    return found


def invent(
    function: Callable[..., Any] | str, problem: Problem, described: Mapping[str, str], device: str = ""
) -> tuple[GemmArguments, dict[str, str]]:
    """Arguments for a GEMM with this epilogue, and what was assumed of operands that were not described, by name.

    Its tensors are torch's fake ones: they take no memory, whatever their size, and serve discovery alone. With a
    ``device`` they are real ones there, random.
    A parameter without a description is the number 1.0 (or its default); an output has the shape that its value has.

    Raises:
        EpilogueError: the function cannot be parsed, a description names no operand, or operands cannot be bound.
    """
    graph = frontend.parse(function)
    names = list(dict.fromkeys(graph.inputs + graph.outputs))
    for name in described:
        if name not in names:
            raise EpilogueError(
                f"The epilogue has no operand {name!r}.", advice=f"It knows {', '.join(names) or 'none'}."
            )
    with torch.device(device) if device else FakeTensorMode():
        given: dict[str, Any] = {name: describe(name, text, problem) for name, text in described.items()}
        assumed = _assume(graph, problem, given)
        a = torch.empty(*problem.lead, problem.m, problem.k, dtype=problem.dtype.torch)
        b = torch.empty(*problem.lead, problem.k, problem.n, dtype=problem.dtype.torch)
        out = torch.empty(*problem.lead, problem.m, problem.n, dtype=_output_dtype(problem).torch)
        if device:
            for tensor in (a, b, *(value for value in given.values() if isinstance(value, torch.Tensor))):
                _fill(tensor)
    epilogue = EpilogueArguments(function, **given)
    return GemmArguments(A=a, B=b, out=out, accumulator_type=problem.accumulator, epilogue=epilogue), assumed


def _fill(tensor: torch.Tensor) -> None:
    """Random normal values; integers from -3 to 3."""
    if tensor.dtype.is_floating_point:
        tensor.copy_(torch.randn(tensor.shape))
    else:
        tensor.copy_(torch.randint(-3, 4, tensor.shape).to(tensor.dtype))


def _assume(graph: Graph, problem: Problem, given: dict[str, Any]) -> dict[str, str]:
    """Add what is missing to ``given``; what was added, in words."""
    assumed: dict[str, str] = {}
    defaults = dict(graph.defaults)
    for name in graph.inputs:
        if name not in given and name not in graph.outputs:
            if name in defaults:
                assumed[name] = f"{defaults[name].value} (its default)"
            else:
                given[name], assumed[name] = 1.0, "the number 1.0"
    for name in graph.outputs:
        if name not in given:
            tensor = given[name] = _output(graph, name, problem)
            assumed[name] = f"{tuple(tensor.shape)} {dtypes.of(tensor.dtype).name}"
    return assumed


def describe(name: str, text: str, problem: Problem) -> torch.Tensor | float | int:
    """The operand that ``text`` describes: ``0.5``, ``N``, ``M,1``, ``L,M,N:bfloat16``, ``128:float32``.

    A lone number without a dtype is a number; L, M, N, K are the problem's extents. The dtype is the problem's where
    none is given.

    Raises:
        EpilogueError: the text is none of these.
        DtypeError: (a TypeError) the dtype is unknown.
    """
    shape_text, colon, dtype_text = text.partition(":")
    if not colon and _NUMBER.fullmatch(text):
        return float(text) if re.search(r"[.e]", text, re.IGNORECASE) else int(text)
    extents = {"L": 1 if problem.batch is None else problem.batch, "M": problem.m, "N": problem.n, "K": problem.k}
    shape = []
    for extent in filter(None, (part.strip() for part in shape_text.strip("()").split(","))):
        if extent not in extents and not extent.isdecimal():
            raise EpilogueError(
                f"{name}={text}: {extent!r} is no extent.", advice="Expected numbers or L, M, N, K: M,N:float16."
            )
        shape.append(extents[extent] if extent in extents else int(extent))
    dtype = dtypes.of(dtype_text) if dtype_text else problem.dtype
    return torch.empty(shape, dtype=dtype.torch)


def _output_dtype(problem: Problem) -> DType:
    """What a product of this dtype is stored as: its own dtype, int32 for integers."""
    return dtypes.INT32 if problem.dtype.is_integer else problem.dtype


def _output(graph: Graph, name: str, problem: Problem) -> torch.Tensor:
    n = problem.n // 2 if graph.stores[name] in infer.halved_nodes(graph) else problem.n
    shape = [*problem.lead, problem.m, n]
    reduction = graph.reductions.get(name)
    if reduction is None:
        dtype = problem.accumulator if name == "accum" else _output_dtype(problem)
        return torch.empty(shape, dtype=dtype.torch)
    return torch.empty(_reduced(reduction, shape), dtype=problem.accumulator.torch)


def _reduced(reduction: Node, shape: list[int]) -> list[int]:
    """The shape that torch gives a reduction over ``shape``, with one element in place of none."""
    attributes = dict(reduction.attributes)
    dim = attributes.get("dim")
    if dim is None:
        return [1]
    dims = {d % len(shape) for d in (dim if isinstance(dim, tuple) else (_integer(dim),))}
    if attributes.get("keepdim"):
        return [1 if d in dims else extent for d, extent in enumerate(shape)]
    return [extent for d, extent in enumerate(shape) if d not in dims] or [1]


def _integer(value: Any) -> int:
    return int(getattr(value, "value", value))
