# SPDX-License-Identifier: Apache-2.0
"""What the emulated chips have: one row each (CUDA programming guide, "Compute Capabilities")."""

from typing import NamedTuple


# Annotations are values here, not text: that would be compiled for each field, 0.4 ms of a first call.
class Chip(NamedTuple):
    """Limits of one GPU. Sizes in bytes; `capability` is (major, minor)."""

    name: str
    capability: tuple[int, int]
    sm_count: int
    shared_per_sm: int
    max_shared_per_block_optin: int
    max_cluster_size: int
    l2_bytes: int
    max_threads_per_sm: int = 2048
    max_blocks_per_sm: int = 32
    reserved_shared_per_block: int = 1024
    max_threads_per_block: int = 1024
    registers_per_sm: int = 65536
    tensor_memory_columns: int = 0


_CHIPS = {
    chip.name: chip
    for chip in (
        Chip("80", (8, 0), 108, 167936, 166912, 1, 40 << 20),
        Chip("86", (8, 6), 84, 102400, 101376, 1, 6 << 20, 1536, 16),
        Chip("89", (8, 9), 142, 102400, 101376, 1, 96 << 20, 1536, 24),
        Chip("90a", (9, 0), 132, 233472, 232448, 16, 50 << 20),
        Chip("100a", (10, 0), 148, 233472, 232448, 16, 126 << 20, tensor_memory_columns=512),
        Chip("103a", (10, 3), 160, 233472, 232448, 16, 126 << 20, tensor_memory_columns=512),
        Chip("120a", (12, 0), 188, 102400, 101376, 8, 96 << 20, 1536, 24),
    )
}
_ALIASES = {"90": "90a", "100": "100a", "100f": "100a", "103": "103a", "103f": "103a", "120": "120a", "120f": "120a"}


def names() -> tuple[str, ...]:
    """Every target that `chip` takes, without `sm_`."""
    return (*_CHIPS, *_ALIASES)


def chip(name: str) -> Chip:
    """The chip for a target such as `100a`, `sm_100a` or `100f`. Raises ValueError for others."""
    bare = name.removeprefix("sm_")
    found = _CHIPS.get(_ALIASES.get(bare, bare))
    if found is None:
        raise ValueError(f"no emulated chip {name!r}; there are {', '.join(_CHIPS)}")
    return found
