"""What simulated brokers ask each other over HTTP: the steps of transactions, and what is done to segments of scalable topics, which an
operator splits and merges by it. The rest of the admin API is left out.

The asking side is production code (`broker.peers`); this is the answering side, without the routes, rights and pacing of `admin`.
"""

from __future__ import annotations

import asyncio
import json
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import parse_qs, unquote, urlsplit

from magnetar.admin.errors import reason_of, status_of
from magnetar.broker.namespaces.errors import NotOwnedError
from magnetar.broker.naming import SCALABLE, SEGMENT, TopicName
from magnetar.broker.scalable.segments import SCALABLE_TARGET, SEGMENTS_TARGET, broker_leaf, segment_target
from magnetar.broker.service import Broker
from magnetar.broker.transactions.coordinators import ASSIGN_TOPIC
from magnetar.broker.transactions.types import TxnId

END_OF_HEAD: Final = b"\r\n\r\n"


class PeerRequests(asyncio.Protocol):
    """One request for each connection, as `client.async_http` sends it."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._data = b""
        self._transport: asyncio.Transport | None = None
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, found, body = self._data.partition(END_OF_HEAD)
        if not found or self._task is not None:
            return
        first, *fields = head.decode().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (field.partition(":") for field in fields)}
        if len(body) >= int(headers.get("content-length", "0")):
            method, target, _ = first.split(" ")
            self._task = asyncio.get_running_loop().create_task(self._answer(method, target, body))

    async def _answer(self, method: str, target: str, body: bytes) -> None:
        status, location = 200, ""
        document: object = None
        try:
            if target.startswith(SEGMENTS_TARGET) and "/broker?" in target:
                location = await self._broker_of(target)
                status = 307 if location else 200
            elif target.startswith(SEGMENTS_TARGET):
                document = await self._segment(method, target, body)
            elif target.startswith(SCALABLE_TARGET):
                await self._scalable(method, target)
            elif method == "GET":
                document = await self._named(target)
            else:
                await self._take_part(json.loads(body))
        except Exception as error:  # as the admin API: an answer for whatever it is
            status = status_of(error)
            document = {"reason": reason_of(error, status)}
            if isinstance(error, NotOwnedError) and error.owner is not None:
                status, location = 307, f"Location: {error.owner.web_service_url}{target}\r\n"
        text = json.dumps(document).encode()
        head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n{location}Content-Length: {len(text)}\r\n\r\n"
        assert self._transport is not None
        self._transport.write(head.encode() + text)
        self._transport.close()

    async def _broker_of(self, target: str) -> str:
        """The header of a redirect; empty: the segment is served here."""
        parts = urlsplit(target)
        name, _ = _segment_of(parts.path)
        found = await self._broker.lookup.find(name, parse_qs(parts.query)["authoritative"][0] == "true")
        url = found.address.web_service_url + segment_target(name, broker_leaf(found.authoritative))
        return f"Location: {url}\r\n" if found.redirect else ""

    async def _named(self, target: str) -> list[dict[str, Any]]:
        parts = urlsplit(target)
        number, topic = int(parts.path.rpartition("/")[2]), parse_qs(parts.query)["topic"][0]
        await self._broker.lookup.require(ASSIGN_TOPIC.partition_name(number))
        return [
            {"leastSigBits": each.least, "subscription": each.subscription, "owner": each.owner}
            for each in await self._broker.transactions.named(number, topic)
        ]

    async def _take_part(self, request: dict[str, Any]) -> None:
        own, topic, commit = self._broker.participants.own, request["topic"], request.get("commit")
        txn = TxnId(request["mostSigBits"], request["leastSigBits"])
        subscription: str | None = request.get("subscription")
        if commit is None and subscription is None:
            await own.prepare_partition(topic, txn, request["owner"])
        elif commit is None:
            await own.prepare_subscription(topic, str(subscription), txn, request["owner"])
        elif subscription is None:
            await own.end_on_partition(topic, txn, commit, request["lowWaterMark"])
        else:
            await own.end_on_subscription(topic, subscription, txn, commit, request["lowWaterMark"])

    # ---- Scalable topics

    async def _segment(self, method: str, target: str, body: bytes) -> object:
        parts = urlsplit(target)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        name, leaf = _segment_of(parts.path)
        own = self._broker.scalable.segments.own
        match method, leaf:
            case "PUT", []:
                await own.create(name, json.loads(body) if body else [])
            case "POST", ["terminate"]:
                await own.terminate(name)
            case "DELETE", []:
                await own.delete(name, query["force"] == "true")
            case "GET", ["subscriptions"]:
                return await own.subscriptions(name)
            case "GET", ["unsent"]:
                return await own.unsent(name)
            case "GET", ["stats"]:
                return await own.stats(name)
            case "PUT", ["subscription", subscription]:
                await own.subscribe(name, unquote(subscription), query["earliest"] == "true")
            case "DELETE", ["subscription", subscription]:
                await own.unsubscribe(name, unquote(subscription))
            case "GET", ["subscription", subscription, "backlog"]:
                return await own.backlog(name, unquote(subscription))
            case _:
                raise AssertionError(f"{method} {target} is not simulated")
        return None

    async def _scalable(self, method: str, target: str) -> None:
        parts = urlsplit(target)
        tenant, namespace, topic, *leaf = parts.path.removeprefix(f"{SCALABLE_TARGET}/").split("/")
        name = TopicName(SCALABLE, tenant, namespace, unquote(topic))
        scalable = self._broker.scalable
        match method, leaf:
            case "PUT", []:
                await scalable.create(name, int(parse_qs(parts.query)["numInitialSegments"][0]), {})
            case "POST", ["split", segment]:
                await (await scalable.controller(name)).split(int(segment))
            case "POST", ["merge", first, second]:
                await (await scalable.controller(name)).merge(int(first), int(second))
            case "POST", ["segments", segment, "subscription", subscription, "drained"]:
                (await scalable.controller(name)).drained(int(segment), unquote(subscription))
            case _:
                raise AssertionError(f"{method} {target} is not simulated")


def _segment_of(path: str) -> tuple[TopicName, list[str]]:
    """The segment that a path names, and what comes behind it."""
    tenant, namespace, topic, descriptor, *leaf = path.removeprefix(f"{SEGMENTS_TARGET}/").split("/")
    return TopicName.parse(f"{SEGMENT}://{tenant}/{namespace}/{unquote(topic)}/{descriptor}"), leaf
