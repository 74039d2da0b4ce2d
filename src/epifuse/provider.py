# SPDX-License-Identifier: Apache-2.0
"""``Provider``: a named set of operator families, and the registry through which ours and users' come alike."""

from __future__ import annotations

import importlib
import importlib.metadata
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

from epifuse.arguments import EpilogueArguments, GemmArguments, RuntimeArguments
from epifuse.errors import ProviderWarning
from epifuse.operator import MetadataFilter, Operator
from epifuse.status import Status
from epifuse.target import TargetLike, TargetSm
from epifuse.utils.device import target_of_operands

ENTRY_POINT_GROUP = "epifuse.providers"
BUILT_IN: Mapping[str, str] = {"cutedsl": "epifuse_cutedsl:CuTeDSLProvider", "cpu": "epifuse_cpu:CpuProvider"}
"""Ours, found also where the package runs from its source folders and no entry point is installed."""


class Provider:
    """Base of a set of operator families. Subclasses add families with the ``register`` decorator."""

    family_modules: ClassVar[Mapping[str, TargetSm | None]] = {}
    """Modules that register further families when they are imported, in their order, and the target that those of each
    are made for (None: the CPU). A module is imported when operators for such a target are first asked for."""
    _operator_classes_by_argtype: ClassVar[dict[type[RuntimeArguments], list[type[Operator]]]] = {}
    _imported: ClassVar[set[str | TargetSm | None]] = set()
    """Modules of ``family_modules`` that were imported, and targets for which nothing is left to import."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._operator_classes_by_argtype = {}
        cls._imported = set()

    @classmethod
    def register(cls, operator_class: type[Operator]) -> type[Operator]:
        """Add an ``Operator`` subclass to this provider; a class decorator.

        Raises:
            TypeError: the class is no ``Operator``, or does not say which arguments it takes.
        """
        if not (isinstance(operator_class, type) and issubclass(operator_class, Operator)):
            raise TypeError(f"{operator_class!r} must be a subclass of Operator to register with {cls.__name__}")
        _check_family(operator_class)
        operator_class._provider = cls
        families = cls._operator_classes_by_argtype.setdefault(operator_class.supported_args_type, [])
        if operator_class not in families:
            families.append(operator_class)
        available_providers.touch()
        return operator_class

    @classmethod
    def unregister(cls, operator_class: type[Operator]) -> None:
        """Take a family out again (a notebook cell that defines its class anew does so first)."""
        cls._operator_classes_by_argtype.get(operator_class.supported_args_type, []).remove(operator_class)
        available_providers.touch()

    @classmethod
    def families(cls, args: RuntimeArguments | None = None) -> list[type[Operator]]:
        """The registered operator classes that take these arguments; all of them where None."""
        for module in cls.family_modules:
            cls._import(module)
        return cls._registered(args)

    @classmethod
    def import_families(cls, target_sm: TargetSm | None) -> None:
        """Import those of ``family_modules`` whose families run on a target (None: the CPU)."""
        if target_sm in cls._imported:
            return
        for module, made_for in cls.family_modules.items():
            if made_for is target_sm or (made_for and target_sm and target_sm.supports_operators_from((made_for,))):
                cls._import(module)
        cls._imported.add(target_sm)

    @classmethod
    def _import(cls, module: str) -> None:
        if module in cls._imported:
            return
        try:
            importlib.import_module(module)
        except Exception as error:  # noqa: BLE001 - a module's fault must not hide what the others offer
            available_providers.failures[module] = failure(error)
            warnings.warn(f"{module} is left out: {failure(error)}", ProviderWarning, stacklevel=2)
        cls._imported.add(module)

    @classmethod
    def _registered(cls, args: RuntimeArguments | None) -> list[type[Operator]]:
        classes = cls._operator_classes_by_argtype
        if args is None:
            found = [family for families in classes.values() for family in families]
        else:  # a family that takes GemmArguments takes its subclasses
            found = [family for kind in type(args).__mro__ for family in classes.get(kind, ())]
        order = {module: place for place, module in enumerate(cls.family_modules)}
        return sorted(found, key=lambda family: order.get(family.__module__, len(order)))

    @classmethod
    def generate_operators(
        cls,
        metadata_filter: MetadataFilter | None = None,
        epilogue_args: EpilogueArguments | None = None,
        target_sm: TargetLike = None,
        args: RuntimeArguments | None = None,
    ) -> list[Operator]:
        """The operators of all families that may fit, each family's best first (see ``Operator``).

        A family that raises is left out, with a ``ProviderWarning``.
        """
        target = TargetSm.ensure(target_sm)
        runs_on = target or (target_of_operands(args.A.device) if isinstance(args, GemmArguments) else None)
        if runs_on is None and not isinstance(args, GemmArguments):
            asked = cls.families(args)
        else:
            cls.import_families(runs_on)
            asked = cls._registered(args)
        found: list[Operator] = []
        for family in asked:
            if target is not None and getattr(family, "designed_for_min_cc", 0) > target.cc:
                continue
            try:
                found += family.generate_operators(
                    metadata_filter, epilogue_args=epilogue_args, target_sm=target, args=args
                )
            except Exception as error:  # noqa: BLE001 - a family's fault must not hide what the others offer
                left_out(family, error)
        return found

    @classmethod
    def _explain(cls, args: Any, target_sm: TargetSm | None) -> Status:
        """Why a provider without any family for these arguments has none."""
        return Status.fail(f"{cls.__name__} has no operator family for {type(args).__name__}")


def left_out(family: type, error: Exception) -> None:
    """Warn that a family or provider raised while it was asked, and so offers nothing. It is asked again next time."""
    available_providers.touch()
    warnings.warn(f"{family.__name__} is left out: {failure(error)}", ProviderWarning, stacklevel=2)


def failure(error: Exception) -> str:
    """What a provider raised, and where: it is a fault of the provider, and its author will look for the line."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f'it raised {type(error).__name__}: {error} ("{frame.filename}", line {frame.lineno})'


def _check_family(family: type[Operator]) -> None:
    """What a registered class must have."""
    name = family.__name__
    takes = getattr(family, "supported_args_type", None)
    if not (isinstance(takes, type) and issubclass(takes, RuntimeArguments)):
        raise TypeError(f"Operator subclass {name} must define 'supported_args_type', a subclass of RuntimeArguments.")
    oldest = getattr(family, "designed_for_min_cc", 0)  # an abstract class may lack it, as may its hooks
    if isinstance(oldest, bool) or not isinstance(oldest, int):
        raise TypeError(f"Operator subclass {name} must define 'designed_for_min_cc', an int such as 80 (0: no GPU).")


class ProviderRegistry(Mapping[str, type[Provider]]):
    """Providers by name. Built-in ones and entry points are imported at the first look, never by ``import epifuse``.

    ``failures`` holds why an entry point could not be loaded; ``version`` grows with each change.
    """

    def __init__(self) -> None:
        self._providers: dict[str, type[Provider]] = {}
        self._lock = threading.Lock()
        """Held for a moment, never during an import: a module that is imported elsewhere may wait for it."""
        self._here = threading.local()
        self._loaded = False
        self.failures: dict[str, str] = {}
        self.version = 0

    def add(self, name: str, provider: type[Provider]) -> None:
        """Register a provider under a name; a later one of the same name replaces it."""
        with self._lock:
            self._providers[name] = provider
            self.version += 1

    def remove(self, name: str) -> None:
        """Take a provider out.

        Raises:
            KeyError: there is none of that name.
        """
        self._load()
        with self._lock:
            del self._providers[name]
            self.version += 1

    def touch(self) -> None:
        """Note that a provider's families changed."""
        with self._lock:
            self.version += 1

    def _load(self) -> dict[str, type[Provider]]:
        """All providers. Threads that come first at the same time each load all; Python imports a module once."""
        if self._loaded or getattr(self._here, "loading", False):  # a provider's module looks in while it is imported
            return self._providers
        self._here.loading = True
        try:
            sources = dict(BUILT_IN)
            for point in _entry_points():
                if sources.setdefault(point.name, point.value) != point.value:
                    self.failures[f"{point.name} ({point.value})"] = f"the name {point.name} is taken already"
            for name, source in sources.items():
                self._load_one(name, source)
            self._loaded = True
        finally:
            self._here.loading = False
        return self._providers

    def _load_one(self, name: str, source: str) -> None:
        if name in self._providers:
            return
        try:
            provider = importlib.metadata.EntryPoint(name, source, ENTRY_POINT_GROUP).load()
        except (Exception, SystemExit) as error:  # a third party's import may do anything; discovery must go on
            self.failures[name] = f"{source} could not be loaded: {type(error).__name__}: {error}"
            return
        if not (isinstance(provider, type) and issubclass(provider, Provider)):
            self.failures[name] = f"{source} is {provider!r}, not a subclass of Provider"
            return
        with self._lock:
            if name not in self._providers:
                self._providers[name] = provider
                self.version += 1

    def __getitem__(self, name: str) -> type[Provider]:
        providers = self._load()
        if name not in providers and name in self.failures:
            raise KeyError(f"{name}: {self.failures[name]}")
        return providers[name]

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._load()))

    def __len__(self) -> int:
        return len(self._load())


def _entry_points() -> Iterator[importlib.metadata.EntryPoint]:
    """Those of our group. Only distributions whose text names the group are parsed, which takes half of the time."""
    for distribution in importlib.metadata.distributions():
        if ENTRY_POINT_GROUP in (distribution.read_text("entry_points.txt") or ""):
            yield from distribution.entry_points.select(group=ENTRY_POINT_GROUP)


available_providers = ProviderRegistry()
"""All providers by name."""


def register_provider(name: str) -> Callable[[type[Provider]], type[Provider]]:
    """Class decorator that makes a provider known under ``name``.

    Raises:
        TypeError: the class is no ``Provider``, or no name is given.
    """
    if not isinstance(name, str):
        raise TypeError(
            f"register_provider takes a name, not {name!r}: write @register_provider('mine') over the class."
        )

    def add(provider: type[Provider]) -> type[Provider]:
        if not (isinstance(provider, type) and issubclass(provider, Provider)):
            raise TypeError(f"{provider!r} must be a subclass of Provider")
        available_providers.add(name, provider)
        return provider

    return add
