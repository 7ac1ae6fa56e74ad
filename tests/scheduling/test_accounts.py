"""Accounts of tenants by themselves; ``test_policies`` tests the order that the waiting queue makes of them."""

from __future__ import annotations

from prelude.scheduling.accounts import Accounts
from prelude.values.options import RequestOptions


def test_names_that_never_come_back_are_forgotten_though_a_tenant_always_waits() -> None:
    accounts = Accounts()
    waiting = [accounts.join(RequestOptions(tenant=f"t{n}")) for n in range(4)]
    for n in range(4, 30_000):
        waiting.append(accounts.join(RequestOptions(tenant=f"t{n}", priority=n % 3)))
        accounts.serve(waiting.pop(0), 5 + n % 7)
    assert len(accounts.served()) < 2500


def test_a_tenant_that_was_served_much_stays_behind_newcomers_while_names_are_forgotten() -> None:
    accounts = Accounts()
    waits = accounts.join(RequestOptions(tenant="waits"))
    heavy = accounts.join(RequestOptions(tenant="heavy"))
    accounts.serve(heavy, 1_000_000)
    for n in range(10_000):
        accounts.serve(accounts.join(RequestOptions(tenant=f"t{n}")), 10)
    newcomer = accounts.join(RequestOptions(tenant="new"))
    again = accounts.join(RequestOptions(tenant="heavy"))
    assert again.served - newcomer.served > 900_000
    assert waits.served <= newcomer.served
