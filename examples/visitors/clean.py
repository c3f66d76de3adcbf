"""First step: a table as it came becomes one value for each day; stdout tells what was done to it."""

import csv
import json
import sys
from datetime import date, timedelta

found: dict[date, int] = {}
twice = unreadable = 0
with open(sys.argv[1]) as file:
    for row in csv.DictReader(file):
        day = date.fromisoformat(row["date"])
        if day in found:
            twice += 1
        elif row["visitors"].isdecimal():
            found[day] = int(row["visitors"])
        else:
            unreadable += 1

first, last = min(found), max(found)
days = [first + timedelta(n) for n in range((last - first).days + 1)]
with open("clean.csv", "w", newline="") as file:
    table = csv.writer(file)
    table.writerow(["date", "visitors"])
    for day in days:
        # A day that is missing is left empty: the next step knows better than to invent one.
        table.writerow([day.isoformat(), found.get(day, "")])

missing = len(days) - len(found)
print(json.dumps({"days": len(days), "missing": missing, "twice": twice, "unreadable": unreadable}))
