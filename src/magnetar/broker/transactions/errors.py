"""What can be wrong with what transactions have stored."""

from __future__ import annotations

from magnetar.base.errors import BrokerError


class TransactionLogError(BrokerError):
    """A record of a log cannot be read: the coordinator or subscription is not served rather than served with a gap."""

    slug = "transaction-log"
