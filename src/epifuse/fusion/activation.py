# SPDX-License-Identifier: Apache-2.0
"""Every operation of the vocabulary as a callable, under its name.

Each takes torch tensors (with autograd), numpy arrays and Python numbers, so an epilogue that is written with them also
runs as an ordinary Python function::

    from epifuse.fusion.activation import gelu, relu

    relu(torch.randn(4, 8))
    gelu(numpy.linspace(-3, 3, 7), approximate="tanh")

The names come from the table itself: an operation that is registered later can be imported from here at once.
``sum``, ``max``, ``min``, ``abs`` and ``pow`` shadow Python's own; import the module rather than ``*``.
"""

from epifuse.fusion.vocabulary import Operation as _Operation
from epifuse.fusion.vocabulary import find as _find
from epifuse.fusion.vocabulary import rows as _rows

__all__ = sorted(_row.name for _row in _rows())  # noqa: PLE0605 - the table's names


def __getattr__(name: str) -> _Operation:
    row = _find(name)
    if row is None:
        raise AttributeError(f"module {__name__!r} has no operation {name!r}")
    return row


def __dir__() -> list[str]:
    return sorted(row.name for row in _rows())
