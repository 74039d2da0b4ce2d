# SPDX-License-Identifier: Apache-2.0
"""Who is measured: ours, and what else is installed. A peer that cannot take part says why."""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import importlib.util
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from epifuse.arguments import EpilogueArguments, GemmArguments
from epifuse.bench.timing import Contender
from epifuse.bench.workloads import Data
from epifuse.check.subjects import describe
from epifuse.discovery import explain, get_operators, rank, resolve_target
from epifuse.operator import Operator

Launch = Callable[[], object]
TUNE_SECONDS = 20.0
"""For one problem of a suite."""


class AbsentError(Exception):
    """A peer cannot take part; the text says why."""


@dataclass(frozen=True)
class Peer:
    """A contender by name. ``build`` gives one launch for a data set, which writes the set's outputs.

    ``quick``: it is ready within seconds, where the others compile or search for up to minutes a problem.
    """

    name: str
    build: Callable[[Data], Launch]
    quick: bool = True

    def contend(self, sets: Sequence[Data]) -> Contender:
        """The contender on outputs of its own.

        Raises:
            AbsentError: it cannot take part.
        """
        own = [data.fresh() for data in sets]
        return Contender(self.name, [self.build(data) for data in own], list(own[0].outputs.values()))


# --- ours -------------------------------------------------------------------------------------------------------------


def arguments(data: Data) -> GemmArguments:
    """The fused GEMM of a data set."""
    epilogue = EpilogueArguments(data.problem.row.function, **data.operands, **data.outputs)
    out = data.outputs["D"]
    if data.problem.row.halved:
        out = torch.empty(data.problem.m, data.problem.n, dtype=out.dtype, device=out.device)
    return GemmArguments(data.a, data.b, out, accumulator_type=torch.float32, epilogue=epilogue)


def launch_of(operator: Operator, args: GemmArguments) -> Launch:
    """A launch of one operator with a kept artifact and nothing asked again."""
    artifact = operator.compile(args)
    return functools.partial(operator.run, args, artifact, assume_supported_args=True)


def predicted(args: GemmArguments) -> list[Operator]:
    """The operators in their predicted order, whatever ``tune`` has found: what a user has who never tuned.

    Raises:
        AbsentError: there are none.
    """
    found = get_operators(args)
    if not found:
        raise AbsentError(str(explain(args)))
    target = resolve_target(args, None)
    return rank(found, [operator._estimate_us(args, target) for operator in found])


def _epifuse(data: Data) -> Launch:
    args = arguments(data)
    return launch_of(predicted(args)[0], args)


def _epifuse_tuned(data: Data) -> Launch:
    """The operator that ``tune`` finds; what it finds is remembered, as it would be for a user."""
    from epifuse.tune import tune  # noqa: PLC0415 - it measures with this package's timing

    if data.a.device.type != "cuda":
        raise AbsentError("tune measures on a GPU")
    args = arguments(data)
    return launch_of(tune(args, seconds=TUNE_SECONDS).operator, args)


def every_operator(sets: Sequence[Data], limit: int = 0) -> list[Contender]:
    """One contender for each operator of the list, so that the order of the list can be judged."""
    own = [data.fresh() for data in sets]
    lists = [(args, predicted(args)) for args in map(arguments, own)]
    outputs = list(own[0].outputs.values())
    found = []
    for number, operator in enumerate(lists[0][1][: limit or None]):
        launches = [launch_of(operators[number], args) for args, operators in lists]
        found.append(Contender(f"epifuse #{number}: {describe(operator.metadata)}", launches, outputs))
    return found


# --- torch ------------------------------------------------------------------------------------------------------------


def cublaslt_fused(data: Data) -> Launch:
    """cuBLASLt's own bias and ReLU or GELU, as torch reaches it (also the workshop's comparison).

    Raises:
        AbsentError: it has no such epilogue.
    """
    name = data.problem.row.name
    if name not in ("bias_relu", "bias_gelu"):
        raise AbsentError("torch reaches cuBLASLt's epilogues for bias and ReLU or GELU alone")
    return functools.partial(
        torch._addmm_activation,
        data.operands["bias"],
        data.a,
        data.b,
        use_gelu=name == "bias_gelu",
        out=data.outputs["D"],
    )


def _unfused(data: Data) -> Launch:
    """cuBLAS, then torch's elementwise kernels; in place where torch can."""
    o, a, b = data.operands, data.a, data.b
    d = data.outputs["D"]
    name = data.problem.row.name

    def launch() -> None:
        if name == "residual":
            torch.addmm(o["C"], a, b, beta=o["beta"], alpha=o["alpha"], out=d)
        elif name == "bias_relu":
            torch.addmm(o["bias"], a, b, out=d).relu_()
        elif name in ("two_outputs", "aux_relu_store"):
            f = data.outputs["F"]
            torch.addmm(o.get("bias", o.get("C")), a, b, alpha=o.get("alpha", 1.0), out=f)
            torch.clamp_min(f, 0.0, out=d)
        elif name == "row_column_scale":
            torch.mm(a, b, out=d).mul_(o["row"]).mul_(o["column"])
        else:
            _store(data, data.problem.row.eager(a, b, o))

    return launch


def _product(data: Data) -> Launch:
    """The product alone: a yardstick, no contender."""
    whole = torch.empty(data.problem.m, data.problem.n, dtype=data.a.dtype, device=data.a.device)
    return functools.partial(torch.mm, data.a, data.b, out=whole)


def _store(data: Data, values: Any) -> None:
    for out, value in zip(data.outputs.values(), values if isinstance(values, tuple) else (values,), strict=True):
        out.copy_(value)


def _compiled(eager: Callable[..., Any]) -> Callable[..., Any]:
    torch.compiler.reset()  # from the ninth problem on, it would run what it has not compiled as it stands

    def forward(a: torch.Tensor, b: torch.Tensor, operands: dict[str, Any]) -> Any:
        return eager(a, b, operands)

    return torch.compile(forward, mode="max-autotune-no-cudagraphs", dynamic=False)


def _torch_compile(data: Data) -> Launch:
    function = _compiled(data.problem.row.eager)
    operands = dict(data.operands)
    try:
        values = function(data.a, data.b, operands)
    except Exception as error:
        raise AbsentError(f"{type(error).__name__}: {error}".splitlines()[0]) from error
    # It allocates its outputs; the check reads what this very call gave.
    _store(data, values)
    return functools.partial(function, data.a, data.b, operands)


# --- quack ------------------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=1)
def quack() -> types.ModuleType:
    """quack's GEMM interface.

    quack 0.6.5 keys its kernels by all that a function refers to, and takes the CuTe DSL's own functions by name only
    where they are installed in a folder called site-packages; elsewhere it walks into the DSL and stops at a
    ContextVar of DSL 4.8.1. So here, and only in a benchmark's process, it is told that all of cutlass is foreign.

    Raises:
        AbsentError: it is not installed, or cannot be imported.
    """
    if importlib.util.find_spec("quack") is None:
        raise AbsentError("quack-kernels is not installed")
    try:
        identity = importlib.import_module("quack.gemm_runtime.identity")
        known = getattr(identity, "_is_extern_function", None)
        if known is not None and not getattr(known, "by_epifuse", False):

            def is_foreign(function: Any) -> bool:
                package = (getattr(function, "__module__", None) or "").partition(".")[0]
                return package == "cutlass" or bool(known(function))

            is_foreign.by_epifuse = True  # type: ignore[attr-defined]
            identity._is_extern_function = is_foreign  # type: ignore[attr-defined]
        return importlib.import_module("quack.gemm_interface")
    except Exception as error:
        raise AbsentError(f"quack cannot be imported: {type(error).__name__}: {error}".splitlines()[0]) from error


def _quack(data: Data, tuned: bool = False) -> Launch:
    module, name = quack(), data.problem.row.name
    o, outputs = data.operands, data.outputs
    activation = {"bias_relu": "relu", "bias_gelu": "gelu_tanh_approx", "two_outputs": "relu",
                  "aux_relu_store": "relu", "swiglu": "swiglu"}.get(name)  # fmt: skip
    if name == "residual":
        launch = functools.partial(
            module.gemm_add, data.a, data.b, o["C"], out=outputs["D"], alpha=o["alpha"], beta=o["beta"], tuned=tuned
        )
    elif activation is not None:
        launch = functools.partial(
            module.gemm_act,
            data.a,
            data.b,
            C=o.get("C"),
            bias=o.get("bias"),
            activation=activation,
            alpha=o.get("alpha", 1.0),
            preact_out=outputs.get("F"),
            postact_out=outputs["D"],
            store_preact="F" in outputs,
            tuned=tuned,
        )
    else:
        raise AbsentError("quack has no ready call for this epilogue")
    try:
        launch()
    except Exception as error:
        raise AbsentError(f"{type(error).__name__}: {error}".splitlines()[0]) from error
    return launch


# --- the Operator API -------------------------------------------------------------------------------------------------


def _operator_api(data: Data) -> Launch:
    """NVIDIA's operators, loaded by name: the core imports no cutlass, a benchmark's peer is asked for by the user."""
    try:
        version = importlib.metadata.version("nvidia-cutlass-operators")
        ops: Any = importlib.import_module("cutlass.operators")
    except Exception as error:
        raise AbsentError(f"nvidia-cutlass-operators: {type(error).__name__}: {error}".splitlines()[0]) from error
    names = ", ".join(["accum", *data.operands])
    body = {
        "bias_relu": "D = relu(accum + bias)",
        "residual": "D = accum * alpha + C * beta",
        "row_column_scale": "D = accum * row * column",
    }.get(data.problem.row.name)
    if body is None:
        raise AbsentError("its vocabulary lacks this epilogue")
    try:
        epilogue = ops.EpilogueArguments(
            f"def f({names}):\n    {body}\n    return D\n", **data.operands, **data.outputs
        )
        args = ops.GemmArguments(data.a, data.b, data.outputs["D"], accumulator_type=torch.float32, epilogue=epilogue)
        found = ops.get_operators(args)
        if not found:
            raise AbsentError(f"version {version} offers no operator with this epilogue on this GPU")
        artifact = found[0].compile(args)
        launch = functools.partial(found[0].run, args, artifact, assume_supported_args=True)
        launch()
    except AbsentError:
        raise
    except Exception as error:
        raise AbsentError(f"{type(error).__name__}: {error}".splitlines()[0]) from error
    return launch


PEERS = (
    Peer("epifuse", _epifuse),
    Peer("epifuse tuned", _epifuse_tuned, quick=False),
    Peer("cublaslt fused", cublaslt_fused),
    Peer("addmm and elementwise", _unfused),
    Peer("quack", _quack),
    Peer("operator api", _operator_api),
    Peer("torch.compile", _torch_compile, quick=False),
    Peer("quack tuned", functools.partial(_quack, tuned=True), quick=False),
)
"""Everyone, ours first."""

YARDSTICK = Peer("product alone", _product)
"""cuBLAS without any epilogue: what a fusion could reach at best, and no contender."""


def chosen(names: str) -> tuple[list[Peer], list[str]]:
    """The peers that ``quick``, ``all`` or a list with commas means, ours always among them; and unknown names."""
    if names == "all":
        return list(PEERS), []
    if names == "quick":
        return [peer for peer in PEERS if peer.quick], []
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    known = {peer.name: peer for peer in PEERS}
    found = [known[name] for name in wanted if name in known]
    if PEERS[0] not in found:
        found.insert(0, PEERS[0])
    return found, [name for name in wanted if name not in known and name != "operators"]
