# SPDX-License-Identifier: Apache-2.0
"""Who computes ``relu(A @ B + bias)``: operators that discovery finds, or a learner's own function."""

from __future__ import annotations

import dataclasses
import importlib.util
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch

from epifuse.arguments import EpilogueArguments, GemmArguments
from epifuse.discovery import explain, get_operators
from epifuse.errors import EpifuseError
from epifuse.fusion.activation import relu
from epifuse.metadata import DesignMetadata, OperatorMetadata
from epifuse.target import TargetLike

BLOCK_N, BLOCK_K = 64, 32
"""Tile of the workshop along N and K; M's is chosen among ``BLOCKS_M``."""
BLOCKS_M = (16, 32, 64)
GROUPS = (1, 4, 8)
_OF_THE_EPILOGUE = ("num_smem_stages", "epilogue_tile", "use_tma_store")


def bias_relu(accum: Any, bias: Any) -> Any:
    """The workshop's epilogue."""
    D = relu(accum + bias)
    return D


class CheckError(EpifuseError, ValueError):
    """A check cannot be made: a file without the function, a device that is not there."""

    advice = "`python -m epifuse check --help` lists what can be checked."


class RefusedError(Exception):
    """No operator serves a problem; the reasons are the text."""


class AnotherServesError(Exception):
    """An operator does not serve a problem that another one of the list serves."""


class Subject(Protocol):
    """Something that writes ``relu(a @ b + bias)``, rounded once, to ``out``."""

    @property
    def name(self) -> str:
        """For people."""

    @property
    def tile(self) -> tuple[int, int, int]:
        """What it works on at a time, along M, N and K."""

    def run(self, a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """Compute; the tensor that holds the result (``out`` where it could be handed over)."""


def fused(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor, out: torch.Tensor) -> GemmArguments:
    """The arguments of the workshop's GEMM."""
    epilogue = EpilogueArguments(bias_relu, bias=bias, D=out)
    return GemmArguments(a, b, out, accumulator_type=torch.float32, epilogue=epilogue)


def describe(metadata: OperatorMetadata) -> str:
    """An operator's family and what its design says, for people."""
    parts = [metadata.operator_class.__name__]
    design = metadata.design
    if getattr(design, "tile_shape", ()):
        parts.append("tile " + "x".join(map(str, design.tile_shape)))  # type: ignore[union-attr]
    for field in ("num_smem_stages", "group"):
        value = getattr(design, field, None)
        if value is not None:
            parts.append(f"{field.removeprefix('num_smem_')} {value}")
    parts += [] if design is None else _unusual(design)
    return ", ".join(parts)


_ALWAYS_SAID = ("tile_shape", "num_smem_stages", "group")


def _unusual(design: DesignMetadata) -> list[str]:
    """The other fields of a design that are not as they usually are."""
    said = []
    for field in dataclasses.fields(design):
        value = getattr(design, field.name)
        if field.name in _ALWAYS_SAID or value == field.default or not value:
            continue
        name = field.name.removesuffix("_shape").replace("_", " ")
        text = "x".join(map(str, value)) if isinstance(value, tuple) else str(value)
        said.append(name if value is True else f"{name} {text}")
    return said


def similar(metadata: OperatorMetadata) -> tuple[Any, ...]:
    """What makes an operator the same one for another problem: its family, and its design but for what depends on the
    epilogue, as the stages do, whose number depends on what of shared memory it leaves."""
    return (metadata.operator_class, repr(_fields(metadata.design)))


def identity(metadata: OperatorMetadata) -> tuple[Any, ...]:
    """What tells two operators of one list apart: ``similar``, and the rest of the design."""
    return (*similar(metadata), repr(metadata.design))


@dataclass(frozen=True)
class OperatorSubject:
    """The operators of one family and design, whatever the problem."""

    key: tuple[Any, ...]
    name: str
    tile: tuple[int, int, int]
    target: TargetLike = None

    def run(self, a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """Find the operator for this problem and run it."""
        self.run_arguments(fused(a, b, bias, out))
        return out

    def run_arguments(self, args: GemmArguments) -> None:
        """Run any GEMM.

        Raises:
            RefusedError: no operator serves it.
            AnotherServesError: none of this design does.
        """
        found = get_operators(args, lambda metadata: similar(metadata) == self.key[:2], target_sm=self.target)
        if not found and get_operators(args, target_sm=self.target, limit=1):
            raise AnotherServesError(self.name)
        if not found:
            raise RefusedError(str(explain(args, target_sm=self.target)))
        next((op for op in found if identity(op.metadata) == self.key), found[0]).run(args)
        if args.A.device.type == "cuda":
            torch.cuda.synchronize(args.A.device)


def operators(args: GemmArguments, target: TargetLike, limit: int) -> list[OperatorSubject]:
    """The designs that serve ``args``, best first, at most ``limit`` of each family; all of them where it is 0.

    The best of a family is among them, then those whose design is the least like that of any before: a check of few
    designs should not be one of neighbors.
    """
    found: dict[tuple[Any, ...], OperatorSubject] = {}
    designs: dict[type, dict[tuple[Any, ...], DesignMetadata | None]] = {}
    for operator in get_operators(args, target_sm=target):
        metadata = operator.metadata
        shape = tuple(getattr(metadata.design, "tile_shape", ())) or (BLOCKS_M[-1], BLOCK_N, BLOCK_K)
        key = identity(metadata)
        found.setdefault(key, OperatorSubject(key, describe(metadata), shape[:3], target))
        designs.setdefault(metadata.operator_class, {}).setdefault(key, metadata.design)
    if not limit:
        return list(found.values())
    taken = {key for family in designs.values() for key in _varied(family, limit)}
    return [subject for key, subject in found.items() if key in taken]


def _varied(designs: dict[tuple[Any, ...], DesignMetadata | None], limit: int) -> list[tuple[Any, ...]]:
    """At most ``limit`` of the keys: the first, then each time the first of those that differ in most fields from the
    one of those before that is most like it."""
    left = {key: _fields(design) for key, design in designs.items()}
    first = next(iter(left))
    taken, near = {first: left.pop(first)}, {key: len(_fields(designs[first])) for key in left}
    while left and len(taken) < limit:
        newest = next(reversed(taken.values()))
        for key, fields in left.items():
            near[key] = min(near[key], sum(value != newest.get(name) for name, value in fields.items()))
        key = max(left, key=lambda key: near[key])
        taken[key] = left.pop(key)
    return list(taken)


def _fields(design: DesignMetadata | None) -> dict[str, Any]:
    if design is None:
        return {}
    return {f.name: getattr(design, f.name) for f in dataclasses.fields(design) if f.name not in _OF_THE_EPILOGUE}


@dataclass(frozen=True)
class Lesson:
    """A learner's file: the function, and its ``tile_of`` where it has one."""

    path: Path
    function: Callable[..., Any]
    tile_of: Callable[..., Any] | None
    takes_out: bool


@dataclass(frozen=True)
class LearnerSubject:
    """A learner's function with one ``block_m`` and ``group``."""

    lesson: Lesson
    block_m: int
    group: int

    @property
    def name(self) -> str:
        """The file's name and the configuration."""
        return f"{self.lesson.path.name}, block_m {self.block_m}, group {self.group}"

    @property
    def tile(self) -> tuple[int, int, int]:
        """The workshop's tile."""
        return (self.block_m, BLOCK_N, BLOCK_K)

    def run(self, a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """Call the function; what it returned, or ``out`` where it returned nothing."""
        extra = {"out": out} if self.lesson.takes_out else {}
        result = self.lesson.function(a, b, bias, self.block_m, self.group, **extra)
        if a.device.type == "cuda":
            torch.cuda.synchronize(a.device)
        if result is None and self.lesson.takes_out:
            return out
        if not isinstance(result, torch.Tensor):
            raise TypeError(f"fused_gemm returned {type(result).__name__}, not a tensor")
        return result


def lesson_of(function: Callable[..., Any], tile_of: Callable[..., Any] | None = None) -> Lesson:
    """A function that stands in a notebook or a program, and its ``tile_of``.

    Raises:
        CheckError: it takes other parameters than ``(A, B, bias, block_m, group)`` and perhaps ``out``.
    """
    parameters = list(inspect.signature(function).parameters)
    if parameters[:5] != ["A", "B", "bias", "block_m", "group"]:
        raise CheckError(
            f"fused_gemm takes ({', '.join(parameters)}).",
            advice="It is called as fused_gemm(A, B, bias, block_m, group), with out=... where it has that parameter.",
        )
    return Lesson(Path(function.__name__), function, tile_of, "out" in parameters)


def load_lesson(path: Path) -> Lesson:
    """The learner's ``fused_gemm(A, B, bias, block_m, group)`` in a file, which is imported.

    Raises:
        CheckError: there is no such file or function, or it takes other parameters.
    """
    if not path.is_file():
        raise CheckError(f"There is no file {str(path)!r}.", advice="Start from examples/workshop/starter.py.")
    name = f"_lesson_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    if spec is None or spec.loader is None:
        raise CheckError(f"{path} is no Python file.", advice="Start from examples/workshop/starter.py.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    function = getattr(module, "fused_gemm", None)
    if not callable(function):
        raise CheckError(f"{path} has no function fused_gemm.", advice="Start from examples/workshop/starter.py.")
    tile_of = getattr(module, "tile_of", None)
    return replace(lesson_of(function, tile_of if callable(tile_of) else None), path=path)
