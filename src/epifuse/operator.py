# SPDX-License-Identifier: Apache-2.0
"""``Operator``: the uniform interface over kernels. Users call the public methods; kernels override the hooks."""

from __future__ import annotations

import inspect
import reprlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, final

from epifuse.arguments import EpilogueArguments, RuntimeArguments
from epifuse.errors import OperandTypeError, UnsupportedError
from epifuse.metadata import OperatorMetadata
from epifuse.runtime.artifact import CompiledArtifact
from epifuse.status import Status
from epifuse.target import TargetLike, TargetSm
from epifuse.workspace import AllocationRequirement, Workspace

if TYPE_CHECKING:
    from epifuse.provider import Provider

MetadataFilter = Callable[[OperatorMetadata], bool]


class Operator(ABC):
    """One configuration of one kernel, with everything needed to ask about it, compile it and run it.

    Instances are immutable and may be shared between threads. A subclass is a family of configurations; it registers
    with a provider (``@SomeProvider.register``) and overrides ``_generate_operators``, ``_compile``, ``_run``, and
    where needed ``_supports``, ``_explain``, ``_estimate_us`` and ``_get_workspace_size``.

    Raises:
        TypeError: a concrete subclass lacks ``supported_args_type`` or ``designed_for_min_cc``.
    """

    supported_args_type: ClassVar[type[RuntimeArguments]]
    """The arguments that the family takes."""
    designed_for_min_cc: ClassVar[int]
    """The oldest compute capability that the family is made for; 0 where none is needed."""
    _provider: ClassVar[type[Provider]]

    __slots__ = ("_accepted", "_metadata")

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if inspect.isabstract(cls):
            return
        for required in ("supported_args_type", "designed_for_min_cc"):
            if not hasattr(cls, required):
                raise TypeError(f"Operator subclass {cls.__name__} must define '{required}'.")

    def __init__(self, metadata: OperatorMetadata, *, accepted: tuple[object, TargetSm | None] | None = None) -> None:
        """``accepted``: the key of arguments and the target for which the family found that it supports them."""
        self._metadata = metadata
        self._accepted = accepted

    @property
    def metadata(self) -> OperatorMetadata:
        """Everything that distinguishes this operator from others."""
        return self._metadata

    def __repr__(self) -> str:
        name = getattr(getattr(self, "_metadata", None), "operator_name", "without metadata")
        return f"<{type(self).__name__} {name}>"

    @final
    def supports(self, args: RuntimeArguments, target_sm: TargetLike = None) -> Status:
        """Whether the operator can be compiled and run with these arguments, and if not, why."""
        target = TargetSm.ensure(target_sm)
        accepted = self._accepted
        if accepted is not None and (accepted[1] is target or accepted[1] == target):
            key = getattr(args, "key", None)
            if key is accepted[0] or key == accepted[0]:
                return self._supports_now(args)
        if not isinstance(args, self.supported_args_type):
            return Status.fail(f"Expected {self.supported_args_type.__name__}, got {type(args).__name__}")
        status = self._metadata.supports(args, target_sm=target)
        status = self._supports(args, target) if status else status
        if not isinstance(status, Status):
            raise OperandTypeError(
                f"{type(self).__name__}._supports returned {reprlib.repr(status)}.",
                advice="It returns Status.success() or Status.fail(reason).",
            )
        if status and target is None:
            self._accepted = (args.key, None)
            return self._supports_now(args)
        return status

    @final
    def compile(self, args: RuntimeArguments, target_sm: TargetLike = None) -> CompiledArtifact:
        """Compile for these arguments; the artifact also serves others of the same kinds. The operator stays as it is.

        Raises:
            UnsupportedError: (a ValueError) the operator does not support the arguments or the target.
        """
        target = TargetSm.ensure(target_sm)
        self._require(args, target)
        return self._compile(args, target)

    @final
    def run(
        self,
        args: RuntimeArguments,
        compiled_artifact: CompiledArtifact | None = None,
        stream: Any = None,
        workspace: Workspace | Any = None,
        assume_supported_args: bool = False,
    ) -> None:
        """Compute, writing the outputs of ``args``.

        Args:
            args: the arguments.
            compiled_artifact: from ``compile``; compiled (and kept) by the operator otherwise.
            stream: a torch stream, a CUstream or its address; None: torch's current stream.
            workspace: at least what ``get_workspace_size`` says; taken from torch's allocator otherwise.
            assume_supported_args: skip the question whether the arguments are supported.

        Raises:
            UnsupportedError: (a ValueError) the arguments are not supported; the outputs are untouched.
        """
        if not assume_supported_args:
            self._require(args, None)
        artifact = self._compile(args, None) if compiled_artifact is None else compiled_artifact
        if not isinstance(artifact, CompiledArtifact):
            raise OperandTypeError(
                f"{type(artifact).__name__} is no compiled artifact of {self!r}.",
                advice="Operator._compile returns a CompiledArtifact; run takes one, or none.",
            )
        if artifact.operator_obj is not self and artifact.operator_obj.metadata != self._metadata:
            raise UnsupportedError(
                f"The artifact was compiled by {artifact.operator_obj!r}, not by {self!r}.",
                advice="Pass the artifact that this operator's compile returned, or none.",
            )
        self._run(args, artifact, stream, workspace)

    def _require(self, args: RuntimeArguments, target: TargetSm | None) -> None:
        status = self.supports(args, target)
        if not status:
            raise UnsupportedError(
                f"Operator does not support the provided arguments: {status.error}",
            ) from status.error

    @final
    def get_workspace_size(self, args: RuntimeArguments) -> AllocationRequirement:
        """The scratch memory that a run with these arguments needs."""
        return self._get_workspace_size(args)

    @classmethod
    def generate_operators(
        cls,
        metadata_filter: MetadataFilter | None = None,
        epilogue_args: EpilogueArguments | None = None,
        target_sm: TargetLike = None,
        args: RuntimeArguments | None = None,
    ) -> list[Operator]:
        """The family's operators for these arguments and target (all of them where None), best first."""
        accept = metadata_filter or _accept_all
        found: Any = cls._generate_operators(accept, epilogue_args, TargetSm.ensure(target_sm), args)
        if not isinstance(found, list | tuple):
            raise OperandTypeError(
                f"{cls.__name__}._generate_operators returned {reprlib.repr(found)}.",
                advice="It returns a list of operators, which may be empty.",
            )
        for operator in found:
            if not isinstance(getattr(operator, "_metadata", None), OperatorMetadata):
                raise OperandTypeError(
                    f"{cls.__name__}._generate_operators returned {operator!r}, which has no metadata.",
                    advice=f"Make operators as {cls.__name__}(OperatorMetadata(operator_name, ...)).",
                )
        return list(found)

    # Hooks that a kernel overrides.

    def _supports(self, args: Any, target_sm: TargetSm | None = None) -> Status:
        """What the metadata cannot say."""
        return Status.success()

    def _supports_now(self, args: Any) -> Status:
        """What may change between two runs with equal arguments (a switch of torch's), asked at every run; cheap."""
        return Status.success()

    @classmethod
    def _explain(cls, args: Any, target_sm: TargetSm | None = None) -> Status:
        """Why the family has no operator for these arguments, or success."""
        return Status.fail("No configuration of this family supports the arguments")

    def _estimate_us(self, args: Any, target_sm: TargetSm | None = None) -> float | None:
        """Predicted microseconds of a run, to order operators of several families; None: unknown, behind the known."""
        return None

    def _get_workspace_size(self, args: Any) -> AllocationRequirement:
        return AllocationRequirement.empty()

    @abstractmethod
    def _compile(self, args: Any, target_sm: TargetSm | None = None) -> CompiledArtifact:
        """Compile; the arguments are supported."""

    @abstractmethod
    def _run(self, args: Any, compiled_artifact: CompiledArtifact, stream: Any, workspace: Any = None) -> None:
        """Launch; the arguments are supported and the artifact is the operator's own."""

    @classmethod
    @abstractmethod
    def _generate_operators(
        cls,
        metadata_filter: MetadataFilter,
        epilogue_args: EpilogueArguments | None = None,
        target_sm: TargetSm | None = None,
        args: Any = None,
    ) -> list[Operator]:
        """The configurations that pass the filter, best first; those that do not fit ``args`` may be left in."""


def _accept_all(metadata: OperatorMetadata) -> bool:
    return True
