# SPDX-License-Identifier: Apache-2.0
"""An executor that records launches instead of running them, and devices that have it."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from epifuse.emulator import chips, memory, ptx
from epifuse.emulator.device import EmulatedDevice


@dataclasses.dataclass
class RecordedLaunch:
    kernel: str
    ptx: str
    arguments: dict[str, Any]
    visible: list[bool]

    def __getattr__(self, name: str) -> Any:
        try:
            return self.arguments[name]
        except KeyError:
            raise AttributeError(name) from None


class RecordingExecutor:
    """Parses for real and launches nothing; `fail_with` is raised in the place of a launch."""

    def __init__(self) -> None:
        self.launches: list[RecordedLaunch] = []
        self.fail_with: BaseException | None = None
        self.during_launch: Callable[[RecordedLaunch], None] = lambda launch: None

    def parse(self, text: str) -> ptx.Module:
        return ptx.parse(text)

    def launch(self, module: ptx.Module, kernel_name: str, **arguments: Any) -> RecordedLaunch:
        if self.fail_with is not None:
            raise self.fail_with
        words = [int.from_bytes(value[:8], "little") for value in arguments["params"] if len(value) >= 8]
        visible = [arguments["memory"].find(word) is not None for word in words]
        launch = RecordedLaunch(kernel_name, module.text, arguments, visible)
        self.during_launch(launch)
        self.launches.append(launch)
        return launch


@pytest.fixture
def executor() -> RecordingExecutor:
    return RecordingExecutor()


@pytest.fixture
def recording_device(executor: RecordingExecutor) -> Callable[..., EmulatedDevice]:
    """Make a device of a chip whose launches are recorded: `recording_device("90a", sm_count=2)`."""

    def make(name: str, **changes: Any) -> EmulatedDevice:
        chip = chips.chip(name)._replace(**changes)
        return EmulatedDevice(chip, None, memory.HostMemory(), executor)

    return make
