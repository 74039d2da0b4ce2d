# SPDX-License-Identifier: Apache-2.0
"""Providers: what may register, entry points of every kind, providers that fail, and the registry in threads."""

import subprocess
import sys
import textwrap
import threading

import pytest
import torch

import epifuse as ops
from epifuse.errors import OperandTypeError, ProviderWarning
from epifuse.provider import ProviderRegistry


class Quiet(ops.Operator):
    """A complete family that offers what ``offer`` makes of the arguments."""

    supported_args_type = ops.GemmArguments
    designed_for_min_cc = 0

    def _compile(self, args, target_sm=None):
        return ops.CompiledArtifact(None, self, None)

    def _run(self, args, compiled_artifact, stream, workspace=None):
        pass

    @classmethod
    def _generate_operators(cls, metadata_filter, epilogue_args=None, target_sm=None, args=None):
        return cls.offer(args)

    @classmethod
    def offer(cls, args):
        return []


def family(**names):
    return type("Family", (Quiet,), names)


def gemm(value=1.0):
    D = torch.empty(2, 2)
    epi = ops.EpilogueArguments("def epi(accum, a): D = accum * a; return D", a=value, D=D)
    return ops.GemmArguments(torch.ones(2, 2), torch.ones(2, 2), D, torch.float32, epi)


@pytest.fixture
def provider():
    class Mine(ops.Provider):
        pass

    ops.register_provider("mine")(Mine)
    yield Mine
    ops.available_providers.remove("mine")


@pytest.mark.parametrize(
    ("names", "what"),
    [
        ({"supported_args_type": 3}, "supported_args_type"),
        ({"supported_args_type": int}, "supported_args_type"),
        ({"supported_args_type": None}, "supported_args_type"),
        ({"designed_for_min_cc": "90"}, "designed_for_min_cc"),
        ({"designed_for_min_cc": True}, "designed_for_min_cc"),
    ],
)
def test_what_a_family_says_of_itself_is_checked(provider, names, what):
    with pytest.raises(TypeError, match=what):
        provider.register(family(**names))
    assert provider.families() == []


def test_a_family_that_overrides_the_question_itself_may_register_without_hooks(provider):
    class Half(ops.Operator):
        supported_args_type = ops.GemmArguments

        @classmethod
        def generate_operators(cls, metadata_filter=None, epilogue_args=None, target_sm=None, args=None):
            return ["any"]

    provider.register(Half)
    assert provider.generate_operators() == ["any"]


def test_registering_twice_is_registering_once(provider):
    provider.register(Quiet)
    provider.register(Quiet)
    assert provider.families() == [Quiet]


def test_an_operator_prints_itself_whatever_its_author_left_out():
    assert "Quiet" in repr(Quiet(None))
    assert "Quiet" in repr(Quiet.__new__(Quiet))


def test_a_family_takes_subclasses_of_its_arguments():
    class More(ops.GemmArguments):
        pass

    D = torch.empty(2, 2)
    args = More(torch.ones(2, 2), torch.ones(2, 2), D, torch.float32)
    (operator,) = ops.get_operators(args)
    operator.run(args)
    assert (D == 2).all()
    assert args.key != ops.GemmArguments(torch.ones(2, 2), torch.ones(2, 2), D, torch.float32).key


@pytest.mark.parametrize("where", ["offer", "_supports", "_estimate_us"])
def test_a_family_that_raises_hides_no_other(provider, where):
    def boom(*_, **__):
        raise RuntimeError("boom")

    def offer(cls, args):
        return [cls(ops.OperatorMetadata("mine", cls, (), ops.metadata.OperandsMetadata(), epilogue=accepts_all))]

    class accepts_all:  # noqa: N801 - stands for an EpilogueMetadata
        supports = staticmethod(lambda args: ops.Status.success())

    names = {"offer": classmethod(offer), where: classmethod(boom) if where == "offer" else boom}
    raising = provider.register(family(**names))
    for value in (1.0, 2.0):
        with pytest.warns(ProviderWarning, match="Family is left out.*boom.*test_provider.py"):
            found = ops.get_operators(gemm(value), target_sm=None)
        assert [op.metadata.provider.__name__ for op in found] == ["CpuProvider"]
        ops.discovery.clear()
    if where != "_estimate_us":
        row = next(row for row in ops.explain(gemm()) if row.family == raising.__name__)
        assert "boom" in row.status.reason


def test_a_list_without_a_family_that_raised_is_not_kept(provider):
    state = {"broken": True}

    def offer(cls, args):
        if state["broken"]:
            raise RuntimeError("boom")
        return []

    calls = []
    provider.register(family(offer=classmethod(lambda cls, args: calls.append(1) or offer(cls, args))))
    args = gemm()
    with pytest.warns(ProviderWarning):
        ops.get_operators(args)
    state["broken"] = False
    ops.get_operators(args)
    ops.get_operators(args)
    assert len(calls) == 2


PACKAGES = {
    "good": ("good_p:Good", "import epifuse\nclass Good(epifuse.Provider): pass"),
    "nested": ("nested_p:Outer.P [extra]", "import epifuse\nclass Outer:\n    class P(epifuse.Provider): pass"),
    "looking": ("looking_p:P", "import epifuse\nlist(epifuse.available_providers)\nclass P(epifuse.Provider): pass"),
    "raising": ("raising_p:P", "raise RuntimeError('broken')"),
    "leaving": ("leaving_p:P", "import sys\nsys.exit(3)"),
    "lacking": ("lacking_p:P", "x = 1"),
    "number": ("number_p:P", "P = 3"),
    "cpu": ("taken_p:P", "import epifuse\nclass P(epifuse.Provider): pass"),
}


def test_entry_points_of_every_kind(tmp_path):
    for name, (value, body) in PACKAGES.items():
        module = value.partition(":")[0]
        (tmp_path / f"{module}.py").write_text(body)
        info = tmp_path / f"{module}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[epifuse.providers]\n{name} = {value}\n")
    program = f"""
        import sys; sys.path.insert(0, {str(tmp_path)!r})
        import epifuse
        known = epifuse.available_providers
        assert set(known) == {{"cpu", "cutedsl", "good", "nested", "looking"}}, set(known)
        assert known["cpu"].__name__ == "CpuProvider"
        why = known.failures
        assert "broken" in why["raising"] and "SystemExit: 3" in why["leaving"] and "AttributeError" in why["lacking"]
        assert "not a subclass of Provider" in why["number"] and "taken" in why["cpu (taken_p:P)"]
        try:
            known["raising"]
        except KeyError as error:
            assert "broken" in str(error)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True)


def test_loading_waits_for_no_module_that_registers_itself(monkeypatch):
    """One thread loads the entry points while another, inside of a module's import, registers with a provider."""
    registry = ProviderRegistry()
    importing, registered = threading.Event(), threading.Event()
    in_time = []

    def load_one(name, source):
        importing.set()
        in_time.append(registered.wait(5))

    monkeypatch.setattr(registry, "_load_one", load_one)
    thread = threading.Thread(target=lambda: list(registry))
    thread.start()
    assert importing.wait(10)
    registry.touch()
    registered.set()
    thread.join(20)
    assert in_time
    assert all(in_time)


@pytest.mark.parametrize("junk", [3, "x", object(), ops.Status.success()])
def test_what_are_no_arguments_is_said(junk):
    operator = ops.get_operators(gemm())[0]
    assert "Expected GemmArguments" in operator.supports(junk).reason
    for ask in (operator.run, operator.compile):
        with pytest.raises(ValueError, match="Expected GemmArguments"):
            ask(junk)
    for ask in (ops.get_operators, ops.explain):
        with pytest.raises(OperandTypeError, match="GemmArguments"):
            ask(junk)
    with pytest.raises(OperandTypeError, match="None"):
        ops.explain(None)


def test_limit_and_providers_are_checked():
    for limit in (-1, "2", 1.5, True):
        with pytest.raises(OperandTypeError, match="limit"):
            ops.get_operators(gemm(), limit=limit)
    cpu = ops.available_providers["cpu"]
    for providers in (["cpu"], "cpu", cpu, [3], [ops.Operator], 3):
        with pytest.raises(OperandTypeError, match="names that are known: .*cpu"):
            ops.get_operators(gemm(), providers=providers)
    assert len(ops.get_operators(gemm(), providers={cpu})) == 1


def test_arguments_of_a_users_own_kind_are_not_mistaken_for_those_that_died(provider):
    class Answer(ops.RuntimeArguments):
        def __init__(self, yes):
            object.__setattr__(self, "performance", None)
            object.__setattr__(self, "yes", yes)

    def offer(cls, args):
        return [cls(ops.OperatorMetadata("answer", cls, (), ops.metadata.OperandsMetadata()))]

    def supports(self, args, target_sm=None):
        return ops.Status.success() if args.yes else ops.Status.fail("no")

    provider.register(family(supported_args_type=Answer, offer=classmethod(offer), _supports=supports))
    assert [len(ops.get_operators(Answer(i % 2 == 0))) for i in range(100)] == [1, 0] * 50
    operator = ops.get_operators(Answer(True))[0]
    assert [bool(operator.supports(Answer(i % 2 == 0))) for i in range(100)] == [True, False] * 50
    kept = Answer(True)
    assert ops.get_operators(kept)[0] is ops.get_operators(kept)[0]


def test_explain_says_that_gpu_families_need_a_gpu():
    row = next(row for row in ops.explain(gemm()) if row.provider == "cutedsl")
    assert "Made for GPUs" in row.status.reason


WRONG_HOOKS = {
    "nothing": ("offer", lambda cls, args: None, "Family._generate_operators returned None"),
    "no operators": ("offer", lambda cls, args: [3], "returned 3, which has no metadata"),
    "no metadata": ("offer", lambda cls, args: [cls(None)], "which has no metadata. Make operators as Family(Oper"),
    "a bool": ("_supports", lambda self, args, target_sm=None: True, "Family._supports returned True"),
    "no answer": ("_supports", lambda self, args, target_sm=None: None, "Family._supports returned None"),
    "a word": ("_estimate_us", lambda self, args, target_sm=None: "fast", "could not convert string to float"),
}


@pytest.mark.parametrize("case", WRONG_HOOKS)
def test_a_hook_that_returns_something_else_is_told_of(provider, case):
    hook, function, said = WRONG_HOOKS[case]

    def offer(cls, args):
        return [cls(ops.OperatorMetadata("mine", cls, (), ops.metadata.OperandsMetadata()))]

    names = {"offer": classmethod(offer), hook: classmethod(function) if hook == "offer" else function}
    provider.register(family(**names))
    D = torch.empty(2, 2)
    args = ops.GemmArguments(torch.ones(2, 2), torch.ones(2, 2), D, torch.float32)
    with pytest.warns(ProviderWarning, match="Family is left out") as caught:
        found = ops.get_operators(args)
    assert said in str(caught[0].message).replace("\n", " ")
    assert [op.metadata.provider.__name__ for op in found] == ["CpuProvider"]


def test_a_provider_is_registered_under_a_name():
    with pytest.raises(TypeError, match="@register_provider.'mine'. over the class"):

        @ops.register_provider
        class Nameless(ops.Provider):
            pass
