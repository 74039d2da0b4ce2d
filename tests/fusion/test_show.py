# SPDX-License-Identifier: Apache-2.0
"""Graphs and plans as text and pictures."""

from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree

from epifuse.fusion.frontend import parse
from epifuse.fusion.ir import draw, show
from epifuse.fusion.ir.node import Kind

TEXT = """
def epi(accum, bias, alpha):
    t = accum * alpha + bias
    F = t
    D = gelu(t, approximate='tanh')
    m = amax(D, dim=1)
    return D, F, m
"""


def test_text(golden: Callable[[str, str], None]) -> None:
    golden("show/text.txt", show.graph_text(parse(TEXT)))


def test_tree(golden: Callable[[str, str], None]) -> None:
    golden("show/tree.txt", show.graph_tree(parse(TEXT)))


def test_mermaid(golden: Callable[[str, str], None]) -> None:
    golden("show/mermaid.txt", show.graph_mermaid(parse(TEXT)))


def test_tree_draws_a_shared_value_once() -> None:
    text = "def epi(accum): t = exp(accum); u = t * t; D = u * u; return D"
    tree = show.graph_tree(parse(text))
    assert tree.count("accum") == 1
    assert tree.count(" exp") == 2
    assert tree.count("above") == 2


def test_the_graph_prints_itself() -> None:
    graph = parse(TEXT)
    assert str(graph) == show.graph_tree(graph)
    assert graph._repr_svg_() == show.graph_svg(graph)


def test_the_picture_is_a_document_with_every_node_in_its_frame() -> None:
    graph = parse(TEXT)
    picture = show.graph_svg(graph)
    root = ElementTree.fromstring(picture)
    space = "{http://www.w3.org/2000/svg}"
    assert root.tag == f"{space}svg"
    title = root.find(f"{space}title")
    assert title is not None
    assert title.text == "Epilogue graph of D, F, m"
    assert "prefers-color-scheme: dark" in picture
    boxes = root.findall(f"{space}g")
    assert len(boxes) == len(graph.nodes)
    assert len(root.findall(f"{space}path")) == sum(len(node.inputs) for node in graph.nodes)
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    frames = []
    for box in boxes:
        rect = box.find(f"{space}rect")
        assert rect is not None
        x, y, w, h = (float(rect.attrib[key]) for key in ("x", "y", "width", "height"))
        assert 0 <= x <= x + w <= width
        assert 0 <= y <= y + h <= height
        frames.append((x, y, x + w, y + h))
    for k, a in enumerate(frames):
        for b in frames[:k]:
            assert a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1], "two boxes overlap"


def test_edges_point_downward() -> None:
    graph = parse(TEXT)
    depth = draw._depths(graph)
    assert all(depth[i] < depth[k] for k, node in enumerate(graph.nodes) for i in node.inputs)
    leaves = [k for k, node in enumerate(graph.nodes) if node.kind is Kind.LOAD]
    assert {graph.nodes[k].name: depth[k] for k in leaves} == {"alpha": 0, "bias": 1}


def test_flags_and_numbers_read_as_the_user_wrote_them() -> None:
    text = show.graph_text(parse("def epi(accum): D = cast(gelu(accum * 0.1), 'float16') ** 2; return D"))
    assert [line.partition(" = ")[2] for line in text.splitlines()][1:6] == [
        "constant 0.1",
        "mul %0 %1",
        "gelu %2",
        "cast %3 dtype=float16",
        "pow %4 exponent=2",
    ]


def test_long_graphs_stay_readable(bind: Callable[..., Any]) -> None:
    body = "D = " + " + 1.0 + ".join(["accum"] * 150)
    found = bind(f"def epi(accum): {body}; return D")
    assert len(str(found.plan).splitlines()) < 40
    assert "more ..." in str(found.plan)
    assert max(len(line) for line in show.graph_tree(found.graph).splitlines()) < 200
    assert "deeper" in show.graph_tree(found.graph)
    ElementTree.fromstring(show.graph_svg(found.graph))
