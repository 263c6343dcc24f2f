"""How many clients may be connected at once, in all and from one address. Pure counting."""

from __future__ import annotations


class ConnectionAdmission:
    """`total_max`, `per_address_max`: 0 for no limit."""

    __slots__ = ("_by_address", "_per_address_max", "_total", "_total_max", "refused_total")

    def __init__(self, total_max: int, per_address_max: int) -> None:
        self._total_max = total_max
        self._per_address_max = per_address_max
        self._total = 0
        self._by_address: dict[str, int] = {}
        self.refused_total = 0

    def enter(self, address: str) -> str:
        """Why this connection may not be; empty when it may, and then it counts until `leave`."""
        held = self._by_address.get(address, 0)
        if self._total_max and self._total >= self._total_max:
            self.refused_total += 1
            return f"{self._total} connections are open, brokerMaxConnections or the limit of open files allows no more"
        if self._per_address_max and held >= self._per_address_max:
            self.refused_total += 1
            return f"{held} connections of {address} are open, brokerMaxConnectionsPerIp allows no more"
        self._total += 1
        self._by_address[address] = held + 1
        return ""

    def leave(self, address: str) -> None:
        """A connection that had entered is gone."""
        self._total -= 1
        held = self._by_address[address] - 1
        if held:
            self._by_address[address] = held
        else:
            del self._by_address[address]

    def validate(self) -> None:
        assert self._total == sum(self._by_address.values())
        assert all(self._by_address.values())
