# SPDX-License-Identifier: Apache-2.0
"""Imports go one way, and environment variables are read in one file."""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

LAYERS = (
    ("epifuse.records",),
    ("epifuse.errors",),
    ("epifuse.dtypes", "epifuse.status", "epifuse.target", "epifuse.tile_order"),
    ("epifuse.settings", "epifuse.runtime.rounding"),
    ("epifuse.fusion.vocabulary",),
    ("epifuse.fusion.activation",),
    ("epifuse.fusion.ir.node", "epifuse.fusion.ir.graph"),
    ("epifuse.fusion.plan",),
    ("epifuse.fusion.ir",),
    ("epifuse.fusion.frontend", "epifuse.fusion.passes"),
    ("epifuse.utils", "epifuse.runtime.tensors", "epifuse.workspace"),
    ("epifuse.binding",),
    ("epifuse.arguments",),
    ("epifuse.metadata",),
    ("epifuse.fusion.reference",),
    ("epifuse.runtime",),
    ("epifuse.operator",),
    ("epifuse.provider",),
    ("epifuse.discovery",),
    ("epifuse",),
    ("epifuse.check", "epifuse.bench", "epifuse.tune"),
    ("epifuse.commands",),
    ("epifuse.cli",),
    ("epifuse.__main__",),
)
"""From the bottom up; a row stands for the module and all below it that no other row names more closely.

A module imports its own row and the rows before it; what stands under ``if TYPE_CHECKING`` is no import.
``epifuse.emulator`` stands aside: it imports nothing of ours.
"""

EXCEPTIONS = {
    (
        "epifuse.fusion.ir.graph",
        "epifuse.fusion.ir.show",
    ): "a graph prints itself through the printer that knows graphs",
    ("epifuse.fusion.plan", "epifuse.fusion.ir.show"): "a plan prints itself through the printer that knows plans",
}

PROVIDERS = ("epifuse_cpu", "epifuse_cutedsl")
FOREIGN = ("cutlass", "cuda", *PROVIDERS)
VOCABULARY_MAY = (
    "epifuse.records",
    "epifuse.errors",
    "epifuse.dtypes",
    "epifuse.runtime.rounding",
    "epifuse.fusion.vocabulary",
)
KERNEL_MAY_NOT = (
    "torch",
    "numpy",
    "epifuse.fusion.ir.graph",
    "epifuse.fusion.frontend",
    "epifuse.fusion.passes",
    "epifuse.fusion.reference",
    "epifuse.arguments",
    "epifuse.discovery",
)
BACKEND_MAY_NOT = (
    "epifuse.fusion.activation",
    "epifuse.fusion.frontend",
    "epifuse.fusion.vocabulary.composite",
    "epifuse.fusion.vocabulary.gated",
)


def within(module: str, names: tuple[str, ...]) -> bool:
    """Whether ``module`` is one of ``names`` or stands below one."""
    return any(module == name or module.startswith(name + ".") for name in names)


def modules(root: Path) -> Iterator[tuple[str, Path, ast.Module]]:
    """Every module of both source roots as (dotted name, path, syntax tree)."""
    for source in (root / "src", root / "providers"):
        for path in sorted(source.rglob("*.py")):
            parts = path.relative_to(source).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            yield name, path, ast.parse(path.read_text(encoding="utf-8"))


def walk_code(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node but those that only a type checker sees."""
    for node in ast.iter_child_nodes(tree):
        yield node
        if not (isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")):
            yield from walk_code(node)


def imports(name: str, path: Path, tree: ast.Module, known: set[str]) -> Iterator[tuple[int, str]]:
    """(line, module) of each import, also those inside functions; ``from a import b`` is a.b where that is a module."""
    package = name if path.stem == "__init__" else name.rpartition(".")[0]
    for node in walk_code(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                anchor = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*anchor, *([base] if base else [])])
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                yield node.lineno, inner if inner in known else base


def rank(module: str) -> int:
    """The number of the row that names ``module`` most closely."""
    best, length = -1, -1
    for number, row in enumerate(LAYERS):
        for name in row:
            if within(module, (name,)) and len(name) > length:
                best, length = number, len(name)
    return best


def forbidden(module: str, imported: str) -> str:
    """Why ``module`` may not import ``imported``; empty where it may."""
    ours = within(imported, ("epifuse", *PROVIDERS))
    if within(module, ("epifuse",)) and within(imported, FOREIGN):
        return "the core imports neither cutlass, cuda nor a provider"
    if within(module, ("epifuse.emulator",)):
        outside = ours and not within(imported, ("epifuse.emulator",))
        return "the emulator imports nothing of ours" if outside else ""
    if within(module, ("epifuse",)):
        if within(module, ("epifuse.fusion.vocabulary",)) and ours and not within(imported, VOCABULARY_MAY):
            return "the vocabulary knows no backend and no layer above it"
        above = ours and not within(imported, ("epifuse.emulator",)) and rank(imported) > rank(module)
        return "imports go downward only" if above and (module, imported) not in EXCEPTIONS else ""
    if ".kernels." in module + "." and within(imported, KERNEL_MAY_NOT):
        return "a kernel sees a plan, never a graph, a function or a framework's tensor"
    if within(imported, BACKEND_MAY_NOT):
        return "a backend knows the primitives alone"
    other = within(imported, PROVIDERS) and not within(module, (imported.partition(".")[0],))
    return "a provider imports no other provider" if other else ""


def reads_environment(tree: ast.Module) -> Iterator[int]:
    """Lines on which ``os.environ``, ``os.getenv`` or one of their kin stands."""
    names = {"environ", "environb", "getenv", "getenvb", "putenv", "unsetenv"}
    for node in ast.walk(tree):
        attribute = isinstance(node, ast.Attribute) and node.attr in names and ast.unparse(node.value) == "os"
        if attribute or (
            isinstance(node, ast.ImportFrom) and node.module == "os" and names & {a.name for a in node.names}
        ):
            yield node.lineno


def known_modules(everything: list[tuple[str, Path, ast.Module]]) -> set[str]:
    """The names of all modules and of the packages that hold them."""
    parts = (name.split(".") for name, _, _ in everything)
    return {".".join(names[:length]) for names in parts for length in range(1, len(names) + 1)}


def violations(root: Path) -> list[str]:
    """Every broken rule under ``root``, as ``path:line: what``."""
    found = []
    everything = list(modules(root))
    known = known_modules(everything)
    for name, path, tree in everything:
        place = path.relative_to(root)
        for line, imported in imports(name, path, tree, known):
            reason = forbidden(name, imported)
            if reason:
                found.append(f"{place}:{line}: imports {imported}: {reason}")
        if name != "epifuse.settings":
            found += [f"{place}:{line}: only settings.py reads the environment" for line in reads_environment(tree)]
    return found


def test_imports_go_one_way_and_the_environment_is_read_in_one_file():
    assert violations(ROOT) == []


def test_every_module_of_the_core_has_a_row():
    names = [name for name, _, _ in modules(ROOT) if within(name, ("epifuse",))]
    unplaced = [
        n for n in names if rank(n) == rank("epifuse") and not within(n, ("epifuse.emulator", "epifuse.fusion"))
    ]
    assert unplaced == ["epifuse"]


def test_every_exception_is_still_needed():
    everything = list(modules(ROOT))
    known = known_modules(everything)
    seen = {(name, imported) for name, path, tree in everything for _, imported in imports(name, path, tree, known)}
    assert set(EXCEPTIONS) <= seen


PLANTS = [
    ("src/epifuse/fusion/ir/infer.py", "def f():\n    import cutlass.cute\n", "neither cutlass"),
    ("src/epifuse/discovery.py", "import epifuse_cpu\n", "nor a provider"),
    ("src/epifuse/utils/device.py", "from cuda.bindings import driver\n", "neither cutlass, cuda"),
    ("src/epifuse/errors.py", "from epifuse.dtypes import DType\n", "downward"),
    ("src/epifuse/errors.py", "from .dtypes import DType\n", "downward"),
    ("src/epifuse/fusion/ir/node.py", "from epifuse.fusion import plan\n", "downward"),
    ("src/epifuse/fusion/ir/node.py", "from ...arguments import GemmArguments\n", "downward"),
    ("src/epifuse/arguments.py", "from epifuse import discovery\n", "downward"),
    ("src/epifuse/arguments.py", "def f():\n    import epifuse\n", "downward"),
    ("src/epifuse/fusion/vocabulary/gated.py", "import epifuse.fusion.ir.node\n", "no backend"),
    ("src/epifuse/emulator/ptx.py", "from epifuse.errors import EpifuseError\n", "nothing of ours"),
    ("src/epifuse/emulator/ptx.py", "from ..settings import ARCH\n", "nothing of ours"),
    ("providers/epifuse_cutedsl/kernels/sm90/kernel.py", "import torch\n", "sees a plan"),
    ("providers/epifuse_cutedsl/kernels/sm90/kernel.py", "from epifuse.fusion.ir.graph import Graph\n", "sees a plan"),
    ("providers/epifuse_cpu/evaluate.py", "from epifuse.fusion.activation import relu\n", "primitives alone"),
    ("providers/epifuse_cpu/evaluate.py", "from epifuse.fusion.frontend import parse\n", "primitives alone"),
    ("providers/epifuse_cpu/evaluate.py", "import epifuse_cutedsl.fuse\n", "no other provider"),
    ("providers/epifuse_cpu/__init__.py", "import os\nx = os.environ.get('X')\n", "only settings.py"),
    ("src/epifuse/target.py", "def f():\n    from os import getenv\n", "only settings.py"),
]


@pytest.mark.parametrize(("place", "text", "reason"), PLANTS)
def test_a_planted_violation_is_found(tmp_path, place, text, reason):
    for module in ("dtypes", "settings", "arguments", "discovery", "fusion/plan", "fusion/ir/graph", "fusion/frontend"):
        stub = tmp_path / "src/epifuse" / f"{module}.py"
        stub.parent.mkdir(parents=True, exist_ok=True)
        stub.write_text("")
    assert violations(tmp_path) == []
    path = tmp_path / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    found = violations(tmp_path)
    assert len(found) == 1, found
    assert found[0].startswith(f"{place}:")
    assert reason in found[0]


def test_what_is_allowed_passes(tmp_path):
    allowed = {
        "src/epifuse/errors.py": "import enum\n",
        "src/epifuse/fusion/plan.py": "from epifuse.errors import Place\n",
        "src/epifuse/metadata.py": "if TYPE_CHECKING:\n    from epifuse.operator import Operator\n",
        "src/epifuse/settings.py": "import os\nfrom epifuse.errors import SettingError\nx = os.environ\n",
        "src/epifuse/emulator/ptx.py": "from . import chips\nfrom epifuse.emulator.errors import EmulatorError\n",
        "src/epifuse/discovery.py": "def f():\n    from epifuse import emulator\n",
        "src/epifuse/commands/demo.py": "import epifuse as ops\n",
        "providers/epifuse_cutedsl/kernels/sm90/kernel.py": "import cutlass\nfrom epifuse.fusion.plan import Access\n",
        "providers/epifuse_cpu/provider.py": "import torch\nimport epifuse\nfrom epifuse_cpu import evaluate\n",
    }
    for place, text in allowed.items():
        path = tmp_path / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "src/epifuse/emulator/__init__.py").write_text("")
    assert violations(tmp_path) == []


IMPORTS = """
import sys
import torch  # which itself imports cuda.bindings where it finds them
before = set(sys.modules)
import epifuse
{body}
heavy = sorted(m for m in set(sys.modules) - before if m.split(".")[0] in ("cutlass", "cuda", "typer", "rich"))
assert not heavy, heavy
assert "cutlass" not in sys.modules
"""

DISCOVERY = """
A, B, D = torch.ones(3, 5), torch.ones(5, 7), torch.empty(3, 7)
epilogue = epifuse.EpilogueArguments("def f(accum, s): D = relu(accum * s); return D", s=2.0, D=D)
arguments = epifuse.GemmArguments(A=A, B=B, out=D, accumulator_type=torch.float32, epilogue=epilogue)
assert epifuse.get_operators(arguments)
for target in ("80", "90a", "100a", "120a"):
    epifuse.get_operators(arguments, target_sm=target)
    str(epifuse.explain(arguments, target_sm=target))
epifuse.get_operators()
"""


@pytest.mark.parametrize("body", ["", DISCOVERY], ids=["import", "discovery"])
def test_neither_import_nor_discovery_loads_a_gpu_library(body):
    command = [sys.executable, "-c", IMPORTS.format(body=body)]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT / 'providers'}"}
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=environment)
    assert run.returncode == 0, run.stderr
