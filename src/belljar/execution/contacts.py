"""What a run asked for on its way out, as it is told: the first decisions in full, the rest counted."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from belljar.audit.network import MOST_ROWS
from belljar.audit.records import ExecRecord, NetworkAccount, NetworkDecision
from belljar.models import Carried, Contacted

__all__ = ["Contacts"]


class Contacts:
    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        """Jars count for themselves, and a run may have two, one after the other: theirs to the run's."""
        self._first: dict[int, Contacted] = {}
        self._carried: dict[int, Carried] = {}
        self._total = self._refused = 0

    def decided(self, contacted: Contacted) -> Contacted:
        """The same, under its number in this run."""
        self._total += 1
        self._refused += not contacted.allowed
        numbered = replace(contacted, number=self._total)
        if len(self._first) < MOST_ROWS:
            self._numbers[contacted.number] = self._total
            self._first[self._total] = numbered
        return numbered

    def carried(self, carried: Carried) -> None:
        number = self._numbers.pop(carried.number, 0)
        if number in self._first:
            self._carried[number] = carried

    def account(self, record: ExecRecord) -> NetworkAccount:
        """What is known of it by now."""
        rows = tuple(self._row(record, contacted) for contacted in self._first.values())
        return NetworkAccount(decisions=rows, total=self._total, refused=self._refused)

    def _row(self, record: ExecRecord, contacted: Contacted) -> NetworkDecision:
        carried = self._carried.get(contacted.number)
        unknown = None if contacted.allowed and contacted.address else 0  # else nothing was connected to
        return NetworkDecision(
            exec_id=record.exec_id,
            project_id=record.project_id,
            number=contacted.number,
            at=datetime.fromisoformat(contacted.at),
            host=contacted.host,
            port=contacted.port,
            address=contacted.address,
            allowed=contacted.allowed,
            rule=contacted.rule,
            secret=contacted.secret,
            sent=carried.sent if carried else unknown,
            received=carried.received if carried else unknown,
        )
