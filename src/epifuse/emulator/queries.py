# SPDX-License-Identifier: Apache-2.0
"""What the emulated chip answers when it is asked about itself: attributes, occupancy, which images it runs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from .errors import HostCallError

if TYPE_CHECKING:
    from .chips import Chip

_WARP_SIZE = 32
_DEFAULT_SHARED_BYTES = 48 * 1024
_TARGET = re.compile(r"(?:sm_)?(\d+)(\d)([af]?)")


def device_attribute(chip: Chip, attribute: int) -> int:
    """The value of a device attribute, by its number in the CUDA API."""
    major, minor = chip.capability
    answers = {
        1: chip.max_threads_per_block,
        2: 1024,
        3: 1024,
        4: 64,
        5: 2**31 - 1,
        6: 65535,
        7: 65535,
        8: _DEFAULT_SHARED_BYTES,
        10: _WARP_SIZE,
        16: chip.sm_count,
        38: chip.l2_bytes,
        39: chip.max_threads_per_sm,
        75: major,
        76: minor,
        81: chip.shared_per_sm,
        95: 1,
        97: chip.max_shared_per_block_optin,
        106: chip.max_blocks_per_sm,
        111: chip.reserved_shared_per_block,
        120: int(chip.max_cluster_size > 1),
    }
    if attribute not in answers:
        raise HostCallError(
            1,
            f"device attribute {attribute} is not answered for the emulated {chip.name}",
            where="cudaDeviceGetAttribute",
            advice="add its value to the table of device attributes",
        )
    return answers[attribute]


def blocks_per_sm(chip: Chip, threads: int, shared_bytes: int) -> int:
    """How many blocks of this size are resident on one SM at once (registers are not modelled)."""
    by_threads = chip.max_threads_per_sm // max(threads, 1)
    by_shared = chip.shared_per_sm // (shared_bytes + chip.reserved_shared_per_block)
    return min(chip.max_blocks_per_sm, by_threads, by_shared)


def active_clusters(chip: Chip, cluster_size: int) -> int:
    """How many clusters are resident at once with one block an SM; at least one, however small the chip."""
    if not 1 <= cluster_size <= chip.max_cluster_size:
        raise HostCallError(
            1,
            f"clusters of {cluster_size} blocks do not exist on the emulated {chip.name}",
            advice=f"use a cluster size from 1 to {chip.max_cluster_size}",
        )
    return max(1, chip.sm_count // cluster_size)


def runs_image_for(chip: Chip, target: str) -> bool:
    """Whether the chip runs machine code compiled for `target`: exactly (a), in its family (f), or upwards (plain)."""
    match = _TARGET.fullmatch(target)
    if match is None:
        return False
    capability, suffix = (int(match[1]), int(match[2])), match[3]
    if suffix == "a":
        return capability == chip.capability
    return capability[0] == chip.capability[0] and capability[1] <= chip.capability[1]
