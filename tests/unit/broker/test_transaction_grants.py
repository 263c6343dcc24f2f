"""What a topic's broker knows of the transactions of other brokers' coordinators."""

from __future__ import annotations

from magnetar.broker.transactions.grants import LEFT_OVER_MAX, MAY_DO_ALL, TOPIC_ITSELF, Grants, Naming
from magnetar.broker.transactions.types import TxnId


def test_the_coordinator_is_asked_once_and_tells_everything_from_then_on() -> None:
    grants = Grants()
    assert grants.allows(TxnId(3, 1), TOPIC_ITSELF, "app") is None
    grants.told(3, [Naming(1, TOPIC_ITSELF, "app"), Naming(1, "sub", "app")])
    assert grants.allows(TxnId(3, 1), TOPIC_ITSELF, "app") is True
    assert grants.allows(TxnId(3, 1), "sub", "app") is True
    assert grants.allows(TxnId(3, 1), "other", "app") is False
    assert grants.allows(TxnId(3, 1), TOPIC_ITSELF, "rival") is False
    assert grants.allows(TxnId(3, 1), TOPIC_ITSELF, MAY_DO_ALL) is True
    assert grants.allows(TxnId(3, 2), TOPIC_ITSELF, "app") is False
    assert grants.allows(TxnId(4, 1), TOPIC_ITSELF, "app") is None
    grants.add(TxnId(3, 2), TOPIC_ITSELF, "")
    assert grants.allows(TxnId(3, 2), TOPIC_ITSELF, "anybody") is True


def test_ended_transactions_are_forgotten_and_those_below_the_mark() -> None:
    grants = Grants()
    for least in range(1, 6):
        grants.add(TxnId(0, least), TOPIC_ITSELF, "app")
    grants.add(TxnId(1, 1), TOPIC_ITSELF, "app")
    grants.ended(TxnId(0, 4), 2)
    assert len(grants) == 3
    assert [grants.allows(TxnId(0, least), TOPIC_ITSELF, "app") for least in (2, 3, 4, 5)] == [None, True, None, True]
    grants.ended(TxnId(0, 4), 5)
    assert len(grants) == 1


def test_what_nobody_ends_is_bounded_and_asked_for_again() -> None:
    grants = Grants()
    grants.told(0, [])
    for least in range(1, 3 * LEFT_OVER_MAX):
        grants.add(TxnId(0, least), TOPIC_ITSELF, "app")
        assert len(grants) <= LEFT_OVER_MAX
        assert grants.allows(TxnId(0, least), TOPIC_ITSELF, "app") is True
    assert grants.allows(TxnId(0, 1), TOPIC_ITSELF, "app") is None
    open_now = [Naming(least, TOPIC_ITSELF, "app") for least in range(1, 2 * LEFT_OVER_MAX)]
    grants.told(0, open_now)
    grants.add(TxnId(0, 5 * LEFT_OVER_MAX), TOPIC_ITSELF, "app")
    assert grants.allows(TxnId(0, 1), TOPIC_ITSELF, "app") is True, (
        "many open transactions are no reason to forget them"
    )
