"""Second step: what a usual day looks like (a trend, a rhythm of the week), and which days were not usual.

Medians throughout, so that the odd days do not bend the picture that they are judged by.
"""

import csv
import json
import os
import sys
from datetime import date
from statistics import median

THRESHOLD = float(os.environ["THRESHOLD"])

with open(sys.argv[1]) as file:
    days = [(date.fromisoformat(row["date"]), row["visitors"]) for row in csv.DictReader(file)]
counts = [int(value) if value else None for _, value in days]

# The trend: the median of the four weeks around a day, each weekday as often as the others.
trend = []
for n in range(len(days)):
    start = max(0, min(n - 14, len(days) - 28))
    trend.append(median(value for value in counts[start : start + 28] if value is not None))

ratios: dict[int, list[float]] = {weekday: [] for weekday in range(7)}
for (day, _), value, level in zip(days, counts, trend, strict=True):
    if value is not None:
        ratios[day.weekday()].append(value / level)
rhythm = {weekday: median(values) for weekday, values in ratios.items()}
usual = [level * rhythm[day.weekday()] for (day, _), level in zip(days, trend, strict=True)]

rest = [value - expected for value, expected in zip(counts, usual, strict=True) if value is not None]
spread = 1.4826 * median(abs(one - median(rest)) for one in rest)
odd = [
    {"date": day.isoformat(), "visitors": value, "usual": round(expected)}
    for (day, _), value, expected in zip(days, counts, usual, strict=True)
    if value is not None and abs(value - expected) > THRESHOLD * spread
]

model = {
    "days": [day.isoformat() for day, _ in days],
    "visitors": counts,
    "trend": [round(level, 1) for level in trend],
    "usual": [round(value, 1) for value in usual],
    "spread": round(spread, 1),
    "rhythm": {weekday: round(value, 3) for weekday, value in rhythm.items()},
    "odd": odd,
}
with open("model.json", "w") as file:
    json.dump(model, file)
print(len(odd))
