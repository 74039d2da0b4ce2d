# SPDX-License-Identifier: Apache-2.0
"""A graph as a picture: layers from inputs to outputs, edges that keep clear of boxes, standalone SVG.

The layout is Sugiyama's: nodes by depth, a way-point in every layer that an edge crosses, an order in each layer by the
mean place of neighbours, and places that follow neighbours as far as widths allow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

from epifuse.fusion.ir.graph import Graph
from epifuse.fusion.ir.node import Kind

_CHARACTER, _PADDING, _HEIGHT, _GAP, _LAYER = 7.3, 26.0, 32.0, 22.0, 68.0
_PORT, _WAYPOINT = 13.0, 8.0
_SWEEPS = 6
_MANY_NODES = 400
"""Of larger graphs, edges go straight: way-points of every edge in every layer would be too many."""

_STYLE = """
.epifuse { font: 13px ui-monospace, Menlo, Consolas, monospace; color-scheme: light dark; }
.epifuse text { text-anchor: middle; dominant-baseline: central; fill: #1b1f24; }
.epifuse rect { stroke-width: 1.4; fill: #ffffff; stroke: #57606a; }
.epifuse path { fill: none; stroke: #6e7781; stroke-width: 1.3; }
.epifuse marker path { fill: #6e7781; stroke: none; }
.epifuse .accum rect, .epifuse .load rect { fill: #ddf4ff; stroke: #0969da; }
.epifuse .constant rect { fill: #f6f8fa; stroke: #8c959f; }
.epifuse .reduce rect { fill: #fff8c5; stroke: #9a6700; }
.epifuse .store rect { fill: #dafbe1; stroke: #1a7f37; }
@media (prefers-color-scheme: dark) {
.epifuse text { fill: #e6edf3; }
.epifuse rect { fill: #161b22; stroke: #8b949e; }
.epifuse path { stroke: #8b949e; }
.epifuse marker path { fill: #8b949e; }
.epifuse .accum rect, .epifuse .load rect { fill: #0c2d6b; stroke: #58a6ff; }
.epifuse .constant rect { fill: #21262d; stroke: #8b949e; }
.epifuse .reduce rect { fill: #4b2900; stroke: #d29922; }
.epifuse .store rect { fill: #033a16; stroke: #3fb950; }
}"""

_MARKER = (
    '<defs><marker id="epifuse-arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
    'orient="auto"><path d="M0 0.8 L8 4 L0 7.2 z"/></marker></defs>'
)


@dataclass
class _Layout:
    """Places while they are looked for. Items from ``len(widths at start)`` on are way-points."""

    widths: list[float]
    above: list[list[int]]
    below: list[list[int]]
    layers: list[list[int]]
    x: list[float] = field(default_factory=list)

    def order(self) -> None:
        """Sort every layer by the mean place of the items' neighbours, downward and upward in turn."""
        place = {item: k / len(layer) for layer in self.layers for k, item in enumerate(layer)}
        for near in (self.above, self.below, self.above, self.below):
            layers = self.layers if near is self.above else self.layers[::-1]
            for layer in layers:
                mean = {i: sum(place[j] for j in near[i]) / len(near[i]) if near[i] else place[i] for i in layer}
                layer.sort(key=lambda i: (mean[i], i))  # noqa: B023 - used at once
                place.update({item: (k + 0.5) / len(layer) for k, item in enumerate(layer)})

    def spread(self) -> None:
        """Give every item its x: near the mean of its neighbours, in the layer's order, without touching."""
        self.x = [0.0] * len(self.widths)
        for layer in self.layers:
            self._place(layer, [0.0] * len(layer))
        for sweep in range(_SWEEPS):
            near = self.below if sweep % 2 else self.above
            for layer in self.layers[::-1] if sweep % 2 else self.layers:
                both = [near[i] or self.above[i] + self.below[i] or [i] for i in layer]
                self._place(layer, [sum(self.x[j] for j in js) / len(js) for js in both])

    def _place(self, layer: Sequence[int], wanted: Sequence[float]) -> None:
        """The middle between packing from the left and from the right."""
        space = [(self.widths[a] + self.widths[b]) / 2 + _GAP for a, b in zip(layer, layer[1:], strict=False)]
        left, right = list(wanted), list(wanted)
        for k, gap in enumerate(space):
            left[k + 1] = max(wanted[k + 1], left[k] + gap)
        for k in reversed(range(len(space))):
            right[k] = min(wanted[k], right[k + 1] - space[k])
        for k, item in enumerate(layer):
            self.x[item] = (left[k] + right[k]) / 2


def graph_svg(graph: Graph, labels: Sequence[str]) -> str:
    """The DAG as a standalone SVG picture, inputs on top and outputs at the bottom; readable in light and dark."""
    widths = [len(text) * _CHARACTER + _PADDING for text in labels]
    depth = _depths(graph)
    layout, routes = _routed(graph, widths, depth)
    layout.order()
    layout.spread()
    left = min(x - w / 2 for x, w in zip(layout.x, layout.widths, strict=True)) - _GAP
    right = max(x + w / 2 for x, w in zip(layout.x, layout.widths, strict=True)) + _GAP
    width, height = right - left, len(layout.layers) * _LAYER + _GAP
    x = [value - left for value in layout.x]
    level = {item: number for number, layer in enumerate(layout.layers) for item in layer}
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="epifuse" role="img" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}">',
        f"<title>{escape('Epilogue graph of ' + ', '.join(graph.outputs))}</title>",
        f"<style>{_STYLE}\n</style>",
        _MARKER,
    ]
    for route, shift in routes:
        points = [(x[item], _middle(level[item])) for item in route]
        parts.append(_edge(points, shift))
    for index, node in enumerate(graph.nodes):
        y = _middle(level[index])
        parts.append(
            f'<g class="{node.kind.value}"><rect x="{x[index] - widths[index] / 2:.1f}" y="{y - _HEIGHT / 2:.1f}" '
            f'width="{widths[index]:.1f}" height="{_HEIGHT:.0f}" rx="7"/>'
            f'<text x="{x[index]:.1f}" y="{y:.1f}">{escape(labels[index])}</text></g>'
        )
    return "\n".join([*parts, "</svg>"])


def _middle(level: int) -> float:
    return _GAP + level * _LAYER + _HEIGHT / 2


def _depths(graph: Graph) -> list[int]:
    """Layer of each node; a leaf stands just above its first user."""
    depth = [0] * len(graph.nodes)
    first_user: dict[int, int] = {}
    for index, node in enumerate(graph.nodes):
        present = [i for i in node.inputs if i >= 0]
        depth[index] = max((depth[i] + 1 for i in present), default=0)
        for i in present:
            first_user[i] = min(first_user.get(i, depth[index]), depth[index])
    for index, node in enumerate(graph.nodes):
        if not node.inputs and index in first_user and node.kind is not Kind.STORE:
            depth[index] = first_user[index] - 1
    return depth


def _routed(
    graph: Graph, widths: Sequence[float], depth: Sequence[int]
) -> tuple[_Layout, list[tuple[list[int], float]]]:
    """The layout with way-points, and each edge as the items it passes with its shift from the user's middle."""
    layers: list[list[int]] = [[] for _ in range(max(depth) + 1)]
    for index, level in enumerate(depth):
        layers[level].append(index)
    layout = _Layout(list(widths), [[] for _ in widths], [[] for _ in widths], layers)
    waypoints: dict[tuple[int, int], int] = {}
    routes = []
    direct = len(graph.nodes) > _MANY_NODES
    for index, node in enumerate(graph.nodes):
        present = [i for i in node.inputs if i >= 0]
        for port, source in enumerate(present):
            route = [source]
            for level in () if direct else range(depth[source] + 1, depth[index]):
                item = waypoints.get((source, level))
                if item is None:
                    item = waypoints[source, level] = len(layout.widths)
                    layout.widths.append(_WAYPOINT)
                    layout.above.append([route[-1]])
                    layout.below.append([])
                    layout.below[route[-1]].append(item)
                    layers[level].append(item)
                route.append(item)
            layout.below[route[-1]].append(index)
            layout.above[index].append(route[-1])
            room = min(_PORT, widths[index] / (len(present) + 1))
            routes.append(([*route, index], (port - (len(present) - 1) / 2) * room))
    return layout, routes


def _edge(points: Sequence[tuple[float, float]], shift: float) -> str:
    """A smooth path through the way-points, from the bottom of the first box to the top of the last."""
    ends = [(points[0][0], points[0][1] + _HEIGHT / 2), *points[1:-1]]
    ends.append((points[-1][0] + shift, points[-1][1] - _HEIGHT / 2))
    text = f"M{ends[0][0]:.1f} {ends[0][1]:.1f}"
    for (x0, y0), (x1, y1) in zip(ends, ends[1:], strict=False):
        bend = (y1 - y0) / 2
        text += f" C{x0:.1f} {y0 + bend:.1f} {x1:.1f} {y1 - bend:.1f} {x1:.1f} {y1:.1f}"
    return f'<path d="{text}" marker-end="url(#epifuse-arrow)"/>'
