"""A graph drawn: as lines of text, or as SVG without anything but boxes, lines and words."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from belljar.flows.graph import Graph

__all__ = ["as_svg", "as_text"]

_WIDE, _HIGH, _GAP_X, _GAP_Y, _EDGE = 168, 44, 56, 18, 24


def as_text(graph: Graph) -> str:
    """One line for each node, in the order in which they can run; how far in says how many it waits for."""
    depths = _depths(graph)
    lines = []
    for name, node in graph.nodes.items():
        after = f"  after {', '.join(sorted(node.needs))}" if node.needs else ""
        branch = "".join(f"  if {'' if one.wanted else 'not '}{one.condition}" for one in node.branches)
        lines.append(f"{'  ' * depths[name]}{name} ({node.kind}){after}{branch}")
    return "\n".join(lines)


def as_svg(graph: Graph) -> str:
    depths = _depths(graph)
    columns: dict[int, list[str]] = {}
    for name in graph.nodes:
        columns.setdefault(depths[name], []).append(name)
    places = {
        name: (_EDGE + column * (_WIDE + _GAP_X), _EDGE + row * (_HIGH + _GAP_Y))
        for column, names in columns.items()
        for row, name in enumerate(names)
    }
    width = 2 * _EDGE + len(columns) * (_WIDE + _GAP_X) - _GAP_X
    height = 2 * _EDGE + max(map(len, columns.values())) * (_HIGH + _GAP_Y) - _GAP_Y
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="13">',
        '<rect width="100%" height="100%" fill="#fff"/>',
    ]
    for name, node in graph.nodes.items():
        for one in sorted(node.needs):
            parts.append(_line(places[one], places[name]))
    for name, node in graph.nodes.items():
        parts.append(_box(places[name], name, str(node.kind)))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _depths(graph: Graph) -> Mapping[str, int]:
    depths: dict[str, int] = {}
    for name, node in graph.nodes.items():
        depths[name] = 1 + max((depths[one] for one in node.needs), default=-1)
    return depths


def _line(source: tuple[int, int], target: tuple[int, int]) -> str:
    x1, y1 = source[0] + _WIDE, source[1] + _HIGH // 2
    x2, y2 = target[0], target[1] + _HIGH // 2
    middle = (x1 + x2) // 2
    path = f"M{x1} {y1}C{middle} {y1} {middle} {y2} {x2} {y2}"
    return f'<path d="{path}" fill="none" stroke="#789" stroke-width="1.5"/>'


def _box(place: tuple[int, int], name: str, kind: str) -> str:
    x, y = place
    shown = name if len(name) <= 22 else name[:21] + "…"
    return (
        f'<g><rect x="{x}" y="{y}" width="{_WIDE}" height="{_HIGH}" rx="6" fill="#eef4fb" stroke="#57c"/>'
        f'<text x="{x + 10}" y="{y + 19}" font-weight="bold">{escape(shown)}</text>'
        f'<text x="{x + 10}" y="{y + 36}" fill="#567" font-size="11">{escape(kind)}</text></g>'
    )
