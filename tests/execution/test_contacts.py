"""A run's decisions as they come: the first kept in full, the rest counted."""

from __future__ import annotations

from tests.audit.databases import queued

from belljar.audit.network import MOST_ROWS
from belljar.execution.contacts import Contacts
from belljar.models import Carried, Contacted

AT = "2025-02-07T12:00:00.000000+00:00"


def contacted(number: int, *, allowed: bool = True, address: str = "203.0.113.7") -> Contacted:
    return Contacted(number=number, at=AT, host="a.test", port=80, allowed=allowed, rule="x", address=address)


def moved(*events: Contacted | Carried) -> list[tuple[int | None, int | None]]:
    contacts = Contacts()
    for event in events:
        if isinstance(event, Contacted):
            contacts.decided(event)
        else:
            contacts.carried(event)
    return [(row.sent, row.received) for row in contacts.account(queued()).decisions]


def test_a_row_has_the_bytes_of_its_connection() -> None:
    carried = (Carried(number=2, sent=3, received=4), Carried(number=1, sent=1, received=2))
    assert moved(contacted(1), contacted(2), *carried) == [(1, 2), (3, 4)]


def test_the_bytes_of_a_connection_whose_end_was_not_seen_are_unknown() -> None:
    assert moved(contacted(1)) == [(None, None)]


def test_what_was_not_connected_moved_nothing() -> None:
    refused = contacted(1, allowed=False, address="")
    unreachable = contacted(2, address="")
    assert moved(refused, unreachable) == [(0, 0), (0, 0)]


def test_the_bytes_of_a_connection_of_an_earlier_run_are_nobodys() -> None:
    assert moved(Carried(number=1, sent=1, received=2), contacted(2)) == [(None, None)]


def test_a_second_jar_of_a_run_counts_on() -> None:
    contacts = Contacts()
    first = contacts.decided(contacted(1))
    contacts.carried(Carried(number=1, sent=1, received=2))
    second = contacts.decided(contacted(1))
    contacts.carried(Carried(number=1, sent=3, received=4))
    assert (first.number, second.number) == (1, 2)
    rows = contacts.account(queued()).decisions
    assert [(row.number, row.sent) for row in rows] == [(1, 1), (2, 3)]


def test_after_so_many_decisions_the_rest_is_counted() -> None:
    contacts = Contacts()
    for number in range(1, MOST_ROWS + 11):
        contacts.decided(contacted(number, allowed=number <= MOST_ROWS))
        contacts.carried(Carried(number=number, sent=1, received=1))
    account = contacts.account(queued())
    assert (account.total, account.refused, len(account.decisions)) == (MOST_ROWS + 10, 10, MOST_ROWS)
    assert {row.sent for row in account.decisions} == {1}
