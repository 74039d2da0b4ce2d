# SPDX-License-Identifier: Apache-2.0
"""``Status``: a yes, or a no with its reason."""

from __future__ import annotations

from epifuse.errors import UnsupportedError
from epifuse.records import dataclass


@dataclass(frozen=True, slots=True)
class Status:
    """The answer to a question such as ``operator.supports(args)``: true when ``error`` is None."""

    error: Exception | None = None

    def __bool__(self) -> bool:
        return self.error is None

    @classmethod
    def success(cls) -> Status:
        """A yes."""
        return _SUCCESS

    @classmethod
    def fail(cls, error: str | Exception) -> Status:
        """A no, with a sentence (wrapped in ``UnsupportedError``, a ``ValueError``) or an exception."""
        return cls(UnsupportedError(error, advice="") if isinstance(error, str) else error)

    @property
    def reason(self) -> str:
        """Why not, as text; empty for a yes."""
        return "" if self.error is None else str(self.error)

    def raise_on_error(self) -> None:
        """Raise the stored exception, if any."""
        if self.error is not None:
            raise self.error


_SUCCESS = Status()
