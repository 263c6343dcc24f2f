"""A transaction's id: which coordinator it belongs to, and its number there."""

from __future__ import annotations

from typing import NamedTuple


class TxnId(NamedTuple):
    """`most`: the coordinator's number. `least`: counts from 1, so that 0 on the wire means "no transaction"."""

    most: int
    least: int

    def __str__(self) -> str:
        """As in Pulsar's answers: `(most,least)`."""
        return f"({self.most},{self.least})"
