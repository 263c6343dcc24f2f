"""What a registered bookie says about itself (BookKeeper's BookieServiceInfo): where it can be reached. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from google.protobuf.message import DecodeError

from magnetar.base.errors import InvalidArgumentError
from magnetar.bookkeeper.errors import RegistrationError
from magnetar.wire.bookkeeper.DataFormats_pb2 import BookieServiceInfoFormat

BOOKIE_RPC: Final = "bookie-rpc"
"""The protocol of the endpoint that speaks BookKeeper's wire protocol, and the id that we give it; Apache's bookies call it `bookie`."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One address at which a bookie serves."""

    id: str
    host: str
    port: int
    protocol: str = BOOKIE_RPC
    auth: tuple[str, ...] = ()
    extensions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BookieServiceInfo:
    """Endpoints in the bookie's own order, and free-form properties."""

    endpoints: tuple[Endpoint, ...]
    properties: Mapping[str, str] = field(default_factory=dict)

    @property
    def rpc(self) -> Endpoint | None:
        """Where ledger clients connect; None when the bookie serves none."""
        return next((endpoint for endpoint in self.endpoints if endpoint.protocol == BOOKIE_RPC), None)

    def to_bytes(self) -> bytes:
        message = BookieServiceInfoFormat(properties=self.properties)
        for endpoint in self.endpoints:
            message.endpoints.add(
                id=endpoint.id,
                host=endpoint.host,
                port=endpoint.port,
                protocol=endpoint.protocol,
                auth=endpoint.auth,
                extensions=endpoint.extensions,
            )
        return message.SerializeToString(deterministic=True)

    @classmethod
    def from_bytes(cls, data: bytes, bookie_id: str) -> BookieServiceInfo:
        """Nothing stands for host and port of the id, as bookies before 4.11 register. Raises RegistrationError."""
        if not data:
            return service_info(*address_of(bookie_id))
        message = BookieServiceInfoFormat()
        try:
            message.ParseFromString(data)
        except DecodeError as error:
            raise RegistrationError(f"the registration of bookie {bookie_id} cannot be read: {error}") from error
        endpoints = tuple(
            Endpoint(item.id, item.host, item.port, item.protocol, tuple(item.auth), tuple(item.extensions))
            for item in message.endpoints
        )
        return cls(endpoints, dict(message.properties))


def service_info(host: str, port: int) -> BookieServiceInfo:
    """A bookie with the one endpoint that ledger clients need."""
    return BookieServiceInfo((Endpoint(BOOKIE_RPC, host, port),))


def address_of(bookie_id: str) -> tuple[str, int]:
    """Host and port of an id like `host:port`. Raises RegistrationError for any other id."""
    host, colon, port = bookie_id.rpartition(":")
    if not colon or not host or not port.isdigit():
        raise RegistrationError(f"bookie {bookie_id} has registered no address, and its id is not host:port")
    return host, int(port)


def check_bookie_id(bookie_id: str) -> None:
    """Raise InvalidArgumentError unless BookKeeper takes it: letters, digits and `:-_.`, and not `readonly`."""
    if bookie_id == "readonly" or not bookie_id or not all(_allowed(letter) for letter in bookie_id):
        raise InvalidArgumentError(
            f"{bookie_id!r} cannot be a bookie's id: use letters, digits and ':', '-', '_', '.', and not 'readonly'"
        )


def _allowed(letter: str) -> bool:
    return letter in ":-_." or (letter.isascii() and letter.isalnum())
