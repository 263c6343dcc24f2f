"""Messages for people: a page decoded by their schemas, and one published by hand. Ours; the official routes show entries as bytes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

import msgspec
from starlette.responses import Response

from magnetar.admin.answers import as_json, message_id
from magnetar.admin.call import NUMBER_MAX, Call
from magnetar.admin.documents.policies import LongNatural
from magnetar.admin.documents.topics import MessageId, MessagePage, NewMessage, ShownMessage
from magnetar.admin.errors import BadRequestError
from magnetar.admin.message_text import MessageText, unpacked
from magnetar.admin.one_message import publish_one
from magnetar.admin.operation import documented
from magnetar.admin.routing import both_domains
from magnetar.admin.topic_access import single, single_persistent
from magnetar.broker.auth.decide import Access
from magnetar.broker.namespaces.errors import PreconditionFailedError
from magnetar.broker.topics.expiry import first_published_at
from magnetar.broker.topics.persistent import PersistentTopic
from magnetar.managed_ledger.errors import EntryNotFoundError
from magnetar.managed_ledger.position import Position

SHOWN_MAX: Final = 100
"""Messages of one page."""

SCANNED_MAX: Final = 2_000
"""Entries that a page looks at for the messages of a key; the next page goes on where it stopped."""

EARLIEST, LATEST = "earliest", "latest"
WRONG_PLACE: Final = "from must be earliest, latest, or a message's LEDGER:ENTRY or LEDGER:ENTRY:INDEX"


class _Place(NamedTuple):
    """An entry, and the message of its batch to begin with."""

    position: Position
    batch_index: int = 0


@documented(answer=MessagePage, query={"from": str, "time": LongNatural, "limit": int, "key": str})
async def browse(call: Call) -> Response:
    """From a message, a time (ms since 1970), the beginning or the end. Nothing is consumed. `key`: only messages with this key."""
    topic = await single_persistent(call)
    limit = max(1, min(call.query_number("limit", 20), SHOWN_MAX))
    place = await _begin(call, topic, limit)
    page = MessagePage(messages=[], previous=_previous(topic, place.position, limit))
    text = MessageText(call)
    scan = _Scan(limit, call.query("key"))
    while place.position <= topic.ledger.last_confirmed:
        if scan.full or scan.scanned >= SCANNED_MAX:
            page.next = f"{place.position.ledger_id}:{place.position.entry_id}:{place.batch_index}"
            break
        place = await _read(call, topic, place, scan, text)
        await call.pace.breathe()
    page.messages, page.scanned = scan.found, scan.scanned
    return as_json(msgspec.to_builtins(page))


@dataclass(slots=True)
class _Scan:
    limit: int
    key: str
    found: list[ShownMessage] = field(default_factory=list)
    scanned: int = 0

    @property
    def full(self) -> bool:
        return len(self.found) >= self.limit


async def _begin(call: Call, topic: PersistentTopic, limit: int) -> _Place:
    ledger, text = topic.ledger, call.query("from", EARLIEST)
    if call.query("time"):
        return _Place(await first_published_at(ledger, call.query_number("time", 0)))
    if text == EARLIEST:
        return _Place(ledger.first_position)
    if text == LATEST:
        total = ledger.index.total_entries
        return _Place(ledger.index.at_rank(max(0, total - limit)) if total else ledger.first_position)
    numbers = text.split(":")
    if len(numbers) not in (2, 3) or not all(each.isascii() and each.isdigit() and len(each) <= 19 for each in numbers):
        raise BadRequestError(WRONG_PLACE)
    wanted = Position(int(numbers[0]), int(numbers[1]))
    # A ledger may have been deleted since: what comes next is shown.
    position = max(wanted, ledger.first_position)
    if position.entry_id >= ledger.index.entries_in(position.ledger_id):
        position = ledger.next_position(position)
    return _Place(position, int(numbers[2]) if len(numbers) == 3 and position == wanted else 0)


def _previous(topic: PersistentTopic, position: Position, limit: int) -> str:
    """Where the page before this one begins; empty at the beginning."""
    index = topic.ledger.index
    before = index.rank(Position(position.ledger_id, position.entry_id - 1))
    if before <= 0:
        return ""
    found = index.at_rank(max(0, before - limit))
    return f"{found.ledger_id}:{found.entry_id}"


async def _read(call: Call, topic: PersistentTopic, place: _Place, scan: _Scan, text: MessageText) -> _Place:
    """The messages of one entry, as far as the page has room. Answers where to go on."""
    scan.scanned += 1
    following = _Place(topic.ledger.next_position(place.position))
    try:
        entry = await topic.ledger.read_entry(place.position)
    except EntryNotFoundError:  # retention was faster
        return following
    for single_message in (await unpacked(call, entry))[place.batch_index :]:
        if scan.full:
            return _Place(place.position, max(0, single_message.batch_index))
        if not scan.key or single_message.key == scan.key:
            scan.found.append(await text.shown(entry, single_message))
    return following


@documented("Publish one message by hand.", body=NewMessage, answer=MessageId, errors=(422,))
async def publish(call: Call) -> Response:
    """`payload` is a text, encoded by `schema` where the topic's latest schema is AVRO, JSON or STRING and it is asked for."""
    message = await call.body_as(NewMessage)
    _check(message)
    if call.topic.partition < 0 and await call.broker.namespaces.partitions(call.topic):
        raise PreconditionFailedError("name a partition: which one a key belongs to is decided by clients")
    topic = await single(call)
    encoded, version = await MessageText(call).encoded(message)
    position = await publish_one(call, topic, message, encoded, version)
    return message_id(position, call.topic.partition)


def _check(message: NewMessage) -> None:
    """Raises BadRequestError for what a message cannot hold."""
    texts = (message.payload, message.key or "", *message.properties, *message.properties.values())
    try:
        for text in texts:
            text.encode()
    except UnicodeEncodeError:
        raise BadRequestError("a text holds half a surrogate pair, which UTF-8 has no form for") from None
    if not 0 <= message.event_time <= NUMBER_MAX:
        raise BadRequestError("eventTime must be in ms since 1970, 0 for none")


ROUTES = (
    *both_domains("GET", "/{topic}/messages", Access.CONSUME, browse),
    *both_domains("POST", "/{topic}/messages", Access.PRODUCE, publish),
)
