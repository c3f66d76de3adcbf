"""Reads sales.csv, draws a chart and writes a report: what an agent's program might do."""

import csv
from collections import Counter
from pathlib import Path

totals: Counter[str] = Counter()
with open("examples/sales.csv") as file:
    for row in csv.DictReader(file):
        totals[row["month"]] += int(row["amount"])

artifacts = Path("/workspace/artifacts")
height, width, top = 160, 56, max(totals.values())
bars = []
for number, (month, amount) in enumerate(totals.items()):
    tall = round(height * amount / top)
    x = 10 + number * width
    bars.append(f'<rect x="{x}" y="{30 + height - tall}" width="40" height="{tall}" fill="#3b7ea1"/>')
    bars.append(f'<text x="{x + 20}" y="{22 + height - tall}" text-anchor="middle">{amount}</text>')
    bars.append(f'<text x="{x + 20}" y="{height + 48}" text-anchor="middle">{month[2:]}</text>')
size = f'width="{20 + width * len(totals)}" height="{height + 60}"'
style = 'font-family="sans-serif" font-size="12"'
svg = f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>{"".join(bars)}</svg>\n'
(artifacts / "chart.svg").write_text(svg)

best = max(totals, key=lambda month: totals[month])
lines = ["# Sales", "", "| month | amount |", "|---|---|"]
lines += [f"| {month} | {amount} |" for month, amount in totals.items()]
lines += ["", f"Best month: {best}.", "", "![chart](chart.svg)", ""]
(artifacts / "report.md").write_text("\n".join(lines))
print(f"{sum(totals.values())} in {len(totals)} months, best: {best}")
