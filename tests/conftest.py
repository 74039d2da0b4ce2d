# SPDX-License-Identifier: Apache-2.0
"""What all tests share: golden text, and the option that writes it anew (``pytest --refresh-golden``)."""

import gc
from collections.abc import Callable
from pathlib import Path

import pytest

from epifuse.fusion import passes

GOLDEN = Path(__file__).parent / "golden"

passes.verify_each = True  # the rules of the IR are run after every pass, wherever a test lowers an epilogue

# A kernel that is compiled or emulated makes millions of objects that live until its test ends. Full collections at the
# usual threshold of 10 go over them again and again, for 8 % of all tests' time; a sixth as many take 0.1 GB more.
gc.set_threshold(*gc.get_threshold()[:2], 100)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--refresh-golden``."""
    parser.addoption("--refresh-golden", action="store_true", help="write tests/golden/ anew from what is computed now")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """``golden(name, text)``: the text must be that of ``tests/golden/<name>``."""

    def check(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--refresh-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text + "\n", encoding="utf-8")
        assert path.exists(), f"{path} is missing: run pytest --refresh-golden and read the difference"
        assert text + "\n" == path.read_text(encoding="utf-8"), f"{path} differs: if that is meant, --refresh-golden"

    return check
