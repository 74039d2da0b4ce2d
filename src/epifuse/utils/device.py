# SPDX-License-Identifier: Apache-2.0
"""Which GPU there is: emulated, named by ``CUTE_DSL_ARCH``, or real."""

from __future__ import annotations

import functools
from collections.abc import Iterable

import torch

from epifuse import emulator, settings
from epifuse.status import Status
from epifuse.target import TargetSm


def device_or_env_target_sm(device: int = 0) -> TargetSm | None:
    """The target of the emulated GPU, else of ``CUTE_DSL_ARCH``, else of CUDA device ``device``; None without any.

    Raises:
        SettingError: (a ValueError) ``CUTE_DSL_ARCH`` is set and does not parse.
    """
    chip = emulator.active()
    if chip is not None:
        return TargetSm.ensure(chip.name)
    named = settings.ARCH.read()
    if named is not None:
        return named
    return target_of_device(torch.device("cuda", device))


def target_of_operands(device: torch.device) -> TargetSm | None:
    """The target that operands on ``device`` mean: their GPU's; on the CPU the emulated GPU's, None without one."""
    if device.type == "cpu":
        chip = emulator.active()
        return None if chip is None else TargetSm.ensure(chip.name)
    return target_of_device(device) or device_or_env_target_sm()


def target_of_device(device: torch.device) -> TargetSm | None:
    """The target of a real CUDA device; None where torch finds no such device."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return None
    index = torch.cuda.current_device() if device.index is None else device.index
    return _target_of_index(index) if index < torch.cuda.device_count() else None


@functools.lru_cache(maxsize=64)
def _target_of_index(index: int) -> TargetSm:
    major, minor = torch.cuda.get_device_capability(index)
    return TargetSm(cc=10 * major + minor)


def device_or_env_supports(requested_targets: TargetSm | str | Iterable[TargetSm | str]) -> Status:
    """Whether the GPU that ``device_or_env_target_sm`` finds runs operators made for any of the given targets."""
    one = isinstance(requested_targets, str | TargetSm)
    wanted = (requested_targets,) if one else tuple(requested_targets)  # type: ignore[arg-type]
    try:
        here = device_or_env_target_sm()
        names = ", ".join(f"sm_{str(t).removeprefix('sm_')}" for t in wanted)
        if here is None:
            return Status.fail(
                f"There is no GPU here and CUTE_DSL_ARCH is not set; {names} can be emulated: "
                f"`with epifuse.emulator.device(...)`."
            )
        if here.supports_operators_from(wanted):  # type: ignore[arg-type]
            return Status.success()
        return Status.fail(f"Device/CUTE_DSL_ARCH sm_{here} does not support operators made for {names}.")
    except ValueError as error:
        return Status.fail(error)
