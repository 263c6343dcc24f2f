"""What brokers write about themselves and their bundles into the metadata store: Pulsar's paths, Pulsar's JSON.

Bundles are the unit of ownership: a namespace's 32-bit hash space is cut into ranges, and the hash of a topic's name falls into one of
them. Nothing is stored for a topic in its bundle, which is what makes a topic cheap. The arithmetic is `magnetar.hashing.bundles`; here
boundaries are text, as the namespace's JSON has them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from magnetar.broker.naming import NamespaceName, TopicName
from magnetar.hashing.bundles import bundle_boundaries, bundle_range
from magnetar.metadata import paths
from magnetar.metadata.store import MetadataStore


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """The addresses of a broker; texts are empty where it does not listen."""

    service_url: str
    service_url_tls: str
    web_service_url: str
    web_service_url_tls: str

    @property
    def broker_id(self) -> str:
        """`host:httpPort`: how brokers are called below `/loadbalance/brokers`."""
        return urlsplit(self.web_service_url or self.web_service_url_tls).netloc


@dataclass(frozen=True, slots=True)
class BundleName:
    """`tenant/namespace/0x..._0x...`."""

    namespace: NamespaceName
    range: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.range}"

    @property
    def path(self) -> str:
        """The node that names its owner."""
        return paths.bundle_ownership_path(self.namespace.tenant, self.namespace.namespace, self.range)

    @classmethod
    def of_path(cls, path: str) -> BundleName | None:
        """None for any other path."""
        parts = path.removeprefix(paths.NAMESPACE_OWNERSHIP_PATH + "/").split("/")
        if not path.startswith(paths.NAMESPACE_OWNERSHIP_PATH + "/") or len(parts) != 3:
            return None
        return cls(NamespaceName(parts[0], parts[1]), parts[2])


@dataclass(frozen=True, slots=True)
class Owner:
    """The broker that serves a bundle. `leaving`: it is giving the bundle up, to `successor` if that is known."""

    address: BrokerAddress
    session: int
    leaving: bool = False
    successor: str = ""

    @property
    def broker_id(self) -> str:
        return self.address.broker_id


def owner_record(address: BrokerAddress, leaving: bool = False, successor: str = "") -> bytes:
    """The value of a bundle's node. `successor` is ours: it lets clients be sent on before the bundle has arrived."""
    record: dict[str, object] = {
        "nativeUrl": address.service_url,
        "nativeUrlTls": address.service_url_tls or None,
        "httpUrl": address.web_service_url,
        "httpUrlTls": address.web_service_url_tls or None,
        "disabled": leaving,
        "advertisedListeners": {},
    }
    if successor:
        record["successor"] = successor
    return json.dumps(record).encode()


def parse_owner(value: bytes, session: int) -> Owner:
    """Whatever is missing is empty: the node may have been written by Pulsar."""
    record = decode(value)
    address = BrokerAddress(
        record.get("nativeUrl") or "",
        record.get("nativeUrlTls") or "",
        record.get("httpUrl") or "",
        record.get("httpUrlTls") or "",
    )
    return Owner(address, session, bool(record.get("disabled")), str(record.get("successor") or ""))


def broker_fields(address: BrokerAddress) -> dict[str, Any]:
    """The fields of a broker's node besides its load."""
    return {
        "webServiceUrl": address.web_service_url,
        "webServiceUrlTls": address.web_service_url_tls or None,
        "pulsarServiceUrl": address.service_url,
        "pulsarServiceUrlTls": address.service_url_tls or None,
    }


def parse_broker(value: bytes) -> BrokerAddress:
    record = decode(value)
    return BrokerAddress(
        record.get("pulsarServiceUrl") or "",
        record.get("pulsarServiceUrlTls") or "",
        record.get("webServiceUrl") or "",
        record.get("webServiceUrlTls") or "",
    )


async def owned_bundles(metadata: MetadataStore) -> list[BundleName]:
    """Every bundle that somebody has, sorted."""
    root = paths.NAMESPACE_OWNERSHIP_PATH
    found: list[BundleName] = []
    for tenant in await metadata.children(root):
        for namespace in await metadata.children(f"{root}/{tenant}"):
            ranges = await metadata.children(f"{root}/{tenant}/{namespace}")
            found += [BundleName(NamespaceName(tenant, namespace), each) for each in ranges]
    return found


def decode(value: bytes) -> dict[str, Any]:
    """A JSON object; {} for anything else."""
    try:
        document = json.loads(value or b"{}")
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def boundaries_text(num_bundles: int) -> list[str]:
    """Equal parts of the hash space, as Pulsar writes them: `0x00000000` up to `0xffffffff`."""
    return [f"0x{boundary:08x}" for boundary in bundle_boundaries(num_bundles)]


def bundle_of(topic: TopicName, boundaries: Sequence[str]) -> str:
    """`0x40000000_0x80000000`: the range that the complete name's CRC32 falls into."""
    return bundle_range(str(topic), [int(boundary, 16) for boundary in boundaries])
