# SPDX-License-Identifier: Apache-2.0
"""``epifuse draw``: the graph of a function in a file, as text, mermaid or SVG."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from epifuse.commands import functions, screen
from epifuse.errors import EpilogueError
from epifuse.fusion import frontend
from epifuse.fusion.ir import show
from epifuse.fusion.ir.graph import Graph

FORMATS: Mapping[str, Callable[[Graph], str]] = {
    ".svg": show.graph_svg,
    ".mmd": show.graph_mermaid,
    ".txt": show.graph_tree,
}
"""What draws, by the ending of the file that is written."""


def run(place: str, output: Path | None) -> None:
    """Write the picture to ``output``, in the format of its ending; None prints the tree.

    Raises:
        EpifuseError: the function cannot be used, the ending is none of ``FORMATS``, or the file cannot be written.
    """
    draw = FORMATS.get(".txt" if output is None else output.suffix)
    if draw is None:
        raise EpilogueError(f"{output} has no known ending.", advice=f"Known endings: {', '.join(FORMATS)}.")
    picture = draw(frontend.parse(functions.load_function(place)))
    if output is None:
        screen.console().print(picture, markup=False, highlight=False, soft_wrap=True)
    else:
        try:
            output.write_text(picture if picture.endswith("\n") else picture + "\n", encoding="utf-8")
        except OSError as error:
            raise EpilogueError(f"{output} cannot be written: {error.strerror}.", advice="") from error
        screen.console().print(f"written to {output}", markup=False, highlight=False, soft_wrap=True)
