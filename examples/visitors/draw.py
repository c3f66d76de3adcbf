"""Third step: a chart, as SVG and by hand: what was counted, what is usual, and the days that stand out."""

import json
import sys

with open(sys.argv[1]) as file:
    model = json.load(file)

WIDE, HIGH, LEFT, TOP, BOTTOM = 900, 360, 56, 48, 44
days, counts, usual, spread = model["days"], model["visitors"], model["usual"], model["spread"]
top = max(max(value for value in counts if value is not None), max(usual)) * 1.06


def x(n: float) -> float:
    return round(LEFT + n * (WIDE - LEFT - 20) / (len(days) - 1), 1)


def y(value: float) -> float:
    return round(TOP + (HIGH - TOP - BOTTOM) * (1 - value / top), 1)


def line(values: list[float | None]) -> str:
    path, pen = [], "M"
    for n, value in enumerate(values):
        if value is None:
            pen = "M"
            continue
        path.append(f"{pen}{x(n)} {y(value)}")
        pen = "L"
    return "".join(path)


parts = [
    f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDE}" height="{HIGH}" viewBox="0 0 {WIDE} {HIGH}" '
    'font-family="sans-serif" font-size="12" fill="#345">',
    '<rect width="100%" height="100%" fill="#fff"/>',
    f'<text x="{LEFT}" y="26" font-size="16" font-weight="bold">'
    f"Visitors a day: {len(model['odd'])} days that were not usual</text>",
]
step = 10 ** (len(str(int(top))) - 1)
for value in range(0, int(top), step // 2):
    parts.append(f'<path d="M{LEFT} {y(value)}H{WIDE - 20}" stroke="#e3e8ee"/>')
    parts.append(f'<text x="{LEFT - 8}" y="{y(value) + 4}" text-anchor="end">{value}</text>')
for n, day in enumerate(days):
    if day.endswith("-01"):
        parts.append(f'<path d="M{x(n)} {TOP}V{HIGH - BOTTOM}" stroke="#e3e8ee"/>')
        parts.append(f'<text x="{x(n)}" y="{HIGH - BOTTOM + 18}" text-anchor="middle">{day[:7]}</text>')
band = [(x(n), y(value + 2 * spread)) for n, value in enumerate(usual)]
band += [(x(n), y(max(value - 2 * spread, 0))) for n, value in reversed([*enumerate(usual)])]
parts.append(f'<path d="M{"L".join(f"{a} {b}" for a, b in band)}Z" fill="#3b7ea1" opacity="0.16"/>')
parts.append(f'<path d="{line(model["trend"])}" fill="none" stroke="#c9862b" stroke-width="2"/>')
parts.append(f'<path d="{line(counts)}" fill="none" stroke="#2b6488" stroke-width="1.4"/>')
for one in model["odd"]:
    across, up = x(days.index(one["date"])), y(one["visitors"])
    label = up + (-10 if one["visitors"] > one["usual"] else 20)
    parts.append(f'<circle cx="{across}" cy="{up}" r="5" fill="#c0392b"/>')
    parts.append(
        f'<text x="{across}" y="{label}" text-anchor="middle" fill="#c0392b" stroke="#fff" '
        f'stroke-width="3" paint-order="stroke">{one["date"][5:]}: {one["visitors"]}</text>'
    )
parts.append(
    f'<text x="{WIDE - 20}" y="{HIGH - 8}" text-anchor="end">line: counted; band: usual for its weekday; '
    "orange: trend</text>"
)
with open("/workspace/artifacts/visitors.svg", "w") as file:
    file.write("\n".join([*parts, "</svg>"]) + "\n")
