"""What a person looks at first: brokers with their sums, bookies, a namespace's topics a page at a time. Ours; Pulsar has neither."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from heapq import nlargest
from operator import attrgetter
from typing import Any, Final, Literal
from urllib.parse import urlencode

import msgspec
from starlette.responses import Response

from magnetar import __version__
from magnetar.admin.answers import as_json
from magnetar.admin.call import Call
from magnetar.admin.documents.cluster import BrokerOverview, ClusterOverview
from magnetar.admin.documents.topics import TopicPage, TopicRow
from magnetar.admin.errors import BadRequestError
from magnetar.admin.metrics.topics import subscriptions_of
from magnetar.admin.operation import documented
from magnetar.admin.redirects import credentials_of
from magnetar.admin.routing import ADMIN, NAMESPACE, Route
from magnetar.base.clock import Clock
from magnetar.bookkeeper.errors import RegistrationError
from magnetar.bookkeeper.service_info import BookieServiceInfo
from magnetar.broker.auth.decide import Access
from magnetar.broker.errors import ServiceNotReadyError
from magnetar.broker.explain.subscription import standing_of
from magnetar.broker.namespaces.records import BrokerAddress
from magnetar.broker.naming import DOMAINS, PARTITION_SUFFIX, PERSISTENT, TopicName
from magnetar.broker.reasons import Code
from magnetar.broker.topics.persistent import PersistentTopic
from magnetar.broker.topics.registry import AnyTopic
from magnetar.metadata import paths
from magnetar.metadata.store import MetadataStore

PAGE_MAX: Final = 200
"""Topics of one page; more are not shown at once."""

SORTED_MAX: Final = 1_000
"""Places of a sorted list that can be reached: what lies behind is looked for by name."""

SCANNED_PER_TURN: Final = 1_000
"""Names that a filter looks at before everybody else has a turn."""

SORTS: Final = ("name", "backlog", "rateIn", "rateOut", "size", "reason")
Sort = Literal["name", "backlog", "rateIn", "rateOut", "size", "reason"]

LOOKED_AT_MAX: Final = 100
"""Subscriptions of a topic that are looked at for why they stand still; of more the later ones do not count in a list of topics."""

_WEIGHTS: Final = {str(code): -place for place, code in enumerate(Code)}
_KEYS: Final[Mapping[str, Callable[[TopicRow], Any]]] = {
    "backlog": attrgetter("msg_backlog"),
    "rateIn": attrgetter("msg_rate_in"),
    "rateOut": attrgetter("msg_rate_out"),
    "size": attrgetter("storage_size"),
    "reason": lambda row: (_weight(row.reason), row.msg_backlog),
}


def _weight(reason: str) -> float:
    """The more, the more a cause weighs; least for none."""
    return _WEIGHTS.get(reason, -float("inf"))


# ---- Brokers and bookies


@documented(answer=ClusterOverview, query={"here": bool}, heavy=True)
async def overview(call: Call) -> Response:
    """Every broker with the sums over its topics, and every bookie; `here`: only the broker that is asked."""
    own = await call.admin.overview.get(lambda: _own(call))
    if call.flag("here"):
        return as_json(msgspec.to_builtins(ClusterOverview(brokers=[own], bookies=[])))
    found = await asyncio.gather(*(_of_other(call, address) for address in await _others(call)))
    document = ClusterOverview(brokers=[own, *found], bookies=await _bookies(call))
    return as_json(msgspec.to_builtins(document))


async def _others(call: Call) -> list[BrokerAddress]:
    brokers, own = call.broker.cluster.brokers, call.broker.ownership.broker_id
    found = [await brokers.get(name) for name in await brokers.live() if name != own]
    return [each for each in found if each is not None]


async def _of_other(call: Call, address: BrokerAddress) -> BrokerOverview:
    try:
        answer = await call.broker.peers.call(
            address, "GET", f"{ADMIN}/broker-stats/overview?here=true", b"", credentials_of(call)
        )
    except ServiceNotReadyError as error:
        return BrokerOverview(broker=address.broker_id, web=address.web_service_url, problem=str(error))
    if answer.status != 200:
        return BrokerOverview(
            broker=address.broker_id, web=address.web_service_url, problem=answer.reason or f"status {answer.status}"
        )
    return msgspec.convert(answer.document, ClusterOverview).brokers[0]


async def _own(call: Call) -> BrokerOverview:
    broker = call.broker
    view = broker.load_manager.reporter.load
    found = BrokerOverview(
        broker=broker.ownership.broker_id,
        web=broker.config.web_service_url,
        version=__version__,
        leader=broker.cluster.leadership.is_leader,
        problem=call.admin.storage.problem(),
        cpu=view.cpu.percent,
        memory=view.memory.percent,
        connections=broker.context.counters.active,
    )
    for topic in broker.topics.loaded:
        _add(found, row_of(topic), topic)
        await call.pace.breathe()
    bookie = call.admin.storage.bookie_statistics()
    if bookie is not None:
        found.disks = {each.path: [each.total_bytes - each.free_bytes, each.total_bytes] for each in bookie.directories}
        found.bookie_problem = (
            "the bookie has failed: see its log"
            if bookie.failed
            else "the bookie is read-only"
            if bookie.read_only
            else ""
        )
        found.damaged_entry_logs = bookie.damaged_entry_logs
    return found


def _add(found: BrokerOverview, row: TopicRow, topic: AnyTopic) -> None:
    found.topics += 1
    for name in (
        "producers",
        "subscriptions",
        "consumers",
        "msg_rate_in",
        "msg_rate_out",
        "throughput_in",
        "throughput_out",
    ):
        setattr(found, name, getattr(found, name) + getattr(row, name))
    found.msg_backlog += row.msg_backlog
    found.storage_size += row.storage_size
    if isinstance(topic, PersistentTopic):
        found.blocked_subscriptions += sum(
            each.dispatch.dispatcher.blocked_on_unacked for each in topic.subscriptions.all
        )


async def _bookies(call: Call) -> list[dict[str, str]]:
    """`writable`, `read-only`, or `gone`: known by its cookie and not there."""
    metadata = call.broker.metadata
    own = call.admin.storage.bookie_statistics()
    if own is not None:  # it is a part of this process, and registers nowhere
        state_of_own = "gone" if own.failed else "read-only" if own.read_only else "writable"
        return [{"bookie": name, "state": state_of_own} for name in await metadata.children(paths.COOKIES_PATH)]
    read_only_name = paths.READ_ONLY_BOOKIES_PATH.rpartition("/")[2]
    state = dict.fromkeys(await metadata.children(paths.COOKIES_PATH), "gone")
    state |= dict.fromkeys(await metadata.children(paths.AVAILABLE_BOOKIES_PATH), "writable")
    state |= dict.fromkeys(await metadata.children(paths.READ_ONLY_BOOKIES_PATH), "read-only")
    state.pop(read_only_name, None)
    return [
        {"bookie": name, "state": state[name], "web": await _page_of(metadata, name, state[name])}
        for name in sorted(state)
    ]


async def _page_of(metadata: MetadataStore, bookie: str, state: str) -> str:
    """Where its own page is; empty for one that is gone or serves no HTTP."""
    if state == "gone":
        return ""
    above = paths.READ_ONLY_BOOKIES_PATH if state == "read-only" else paths.AVAILABLE_BOOKIES_PATH
    node = await metadata.get(f"{above}/{bookie}")
    try:
        info = BookieServiceInfo.from_bytes(b"" if node is None else node.value, bookie)
    except RegistrationError:
        return ""
    found = next((each for each in info.endpoints if each.id == "httpserver"), None)
    if found is None:
        return ""
    host = f"[{found.host}]" if ":" in found.host else found.host
    return f"http://{host}:{found.port}/"


# ---- Topics of a namespace


@documented(
    answer=TopicPage,
    query={
        "sort": Sort,
        "domain": Literal["persistent", "non-persistent"],
        "filter": str,
        "after": str,
        "limit": int,
        "here": bool,
    },
    heavy=True,
)
async def topics_page(call: Call) -> Response:
    """Topics by name, or those with the largest backlog, rate or size, or that stand still for what weighs most. `after`: the answer's
    `next`, for the next page.

    By name the partitions of a topic are one row. Sorted otherwise, only loaded topics count: the others have no numbers. `here`: with the
    numbers of the broker that is asked only.
    """
    await call.broker.namespaces.policies(call.namespace)
    sort, domain = call.query("sort", "name"), call.query("domain", PERSISTENT)
    if sort not in SORTS or domain not in DOMAINS:
        raise BadRequestError(f"sort must be one of {', '.join(SORTS)}, and domain one of {', '.join(DOMAINS)}")
    limit = max(1, min(call.query_number("limit", 50), PAGE_MAX))
    page = await (_by_name(call, domain, limit) if sort == "name" else _by_number(call, domain, sort, limit))
    return as_json(msgspec.to_builtins(page))


async def _by_name(call: Call, domain: str, limit: int) -> TopicPage:
    names: Sequence[str]
    if domain == PERSISTENT:
        names = await call.broker.namespaces.persistent_topics(call.namespace)
    else:
        names = sorted(call.broker.topics.loaded_non_persistent(call.namespace))
    page = TopicPage(topics=[], total=len(names))
    rows: dict[str, TopicRow] = {}
    prefix, wanted = f"{domain}://{call.namespace}/", call.query("filter")
    place = bisect_right(names, call.query("after")) if call.query("after") else 0
    while place < len(names):
        if place % SCANNED_PER_TURN == 0:
            await call.pace.breathe()
        name = names[place]
        place += 1
        if wanted and wanted not in name[len(prefix) :]:
            continue
        whole = str(TopicName.parse(name).partitioned_name) if PARTITION_SUFFIX in name else name
        if whole not in rows:
            if len(rows) == limit:
                page.next = names[place - 2]
                break
            rows[whole] = TopicRow(name=whole)
        rows[whole].partitions += whole != name
        loaded = call.broker.topics.get_loaded(TopicName.parse(name))
        if loaded is not None:
            add_row(rows[whole], with_reason(row_of(loaded), loaded, call.broker.clock))
    page.topics = list(rows.values())
    if not call.flag("here"):
        await _add_others(call, page)
    return page


async def _add_others(call: Call, page: TopicPage) -> None:
    by_name = {row.name: row for row in page.topics}
    for other in await _pages_elsewhere(call):
        for row in other.topics:
            if row.name in by_name:
                add_row(by_name[row.name], row)
            elif row.loaded and not row.name.startswith(f"{PERSISTENT}:") and len(page.topics) < PAGE_MAX:
                page.topics.append(row)


async def _pages_elsewhere(call: Call) -> list[TopicPage]:
    """The same page with the numbers of each other broker. Raises ServiceNotReadyError when one does not answer."""
    query = {**call.request.query_params, "here": "true"}
    target = f"{ADMIN}/namespaces/{call.namespace}/topicsPage?{urlencode(query)}"

    async def ask(address: BrokerAddress) -> TopicPage:
        answer = await call.broker.peers.call(address, "GET", target, b"", credentials_of(call))
        if answer.status != 200:
            raise ServiceNotReadyError(f"the broker {address.broker_id} does not show its topics: {answer.reason}")
        return msgspec.convert(answer.document, TopicPage)

    return list(await asyncio.gather(*(ask(address) for address in await _others(call))))


async def _by_number(call: Call, domain: str, sort: str, limit: int) -> TopicPage:
    """`after` is a number of places here."""
    text = call.query("after", "0") or "0"
    if not (text.isascii() and text.isdigit() and len(text) < 7):
        raise BadRequestError(
            "after must be the number of topics that went before, where topics are sorted by a number"
        )
    first = min(int(text), SORTED_MAX)
    until = min(first + limit, SORTED_MAX)
    key = _KEYS[sort]
    clock = call.broker.clock
    rows: list[TopicRow] = []
    total = 0
    async for row, topic in _loaded_rows(call, domain):
        total += 1
        rows.append(with_reason(row, topic, clock) if sort == "reason" else row)
        if len(rows) >= 4 * SORTED_MAX:
            rows = _largest(rows, key, until + 1)
    page = TopicPage(topics=rows, total=total)
    if sort != "reason":
        page.topics = [_looked_up(call, row) for row in _largest(rows, key, until + 1)]
    if not call.flag("here"):
        for other in await _pages_elsewhere(call):
            page.topics += other.topics
            page.total += other.total
    found = _largest(page.topics, key, until + 1)
    if call.flag("here"):
        page.topics = found
        return page
    page.topics = found[first:until]
    page.next = str(until) if len(found) > until and until < SORTED_MAX else ""
    return page


def _looked_up(call: Call, row: TopicRow) -> TopicRow:
    topic = call.broker.topics.get_loaded(TopicName.parse(row.name))
    return row if topic is None else with_reason(row, topic, call.broker.clock)


def _largest(rows: Iterable[TopicRow], key: Callable[[TopicRow], Any], count: int) -> list[TopicRow]:
    return nlargest(count, rows, key=lambda row: (key(row), row.name))


async def _loaded_rows(call: Call, domain: str) -> AsyncIterator[tuple[TopicRow, AnyTopic]]:
    namespace, wanted = call.namespace, call.query("filter")
    for topic in call.broker.topics.loaded:
        name = topic.name
        if name.namespace_name == namespace and name.domain == domain and wanted in name.local_name:
            yield row_of(topic), topic
        await call.pace.breathe()


def row_of(topic: AnyTopic) -> TopicRow:
    """Of a loaded topic, from plain counters."""
    subscriptions = subscriptions_of(topic)
    row = TopicRow(
        name=str(topic.name),
        loaded=1,
        msg_rate_in=topic.rates.messages_per_s,
        msg_rate_out=sum(each.rates.messages_per_s for each in subscriptions),
        throughput_in=topic.rates.bytes_per_s,
        throughput_out=sum(each.rates.bytes_per_s for each in subscriptions),
        producers=len(topic.publishers.producers),
        subscriptions=len(subscriptions),
        consumers=sum(len(each.consumers) for each in subscriptions),
    )
    if isinstance(topic, PersistentTopic):
        row.msg_backlog = sum(each.backlog_entries for each in topic.subscriptions.all)
        row.storage_size = topic.ledger.size_bytes
    return row


def with_reason(row: TopicRow, topic: AnyTopic, clock: Clock) -> TopicRow:
    """The same row, with how many of the topic's subscriptions stand still and why."""
    if isinstance(topic, PersistentTopic) and row.msg_backlog:
        for subscription in topic.subscriptions.all[:LOOKED_AT_MAX]:
            if not subscription.backlog_entries:
                continue
            moving, reasons = standing_of(topic, subscription, clock)
            if moving is False and reasons:
                row.standing += 1
                row.reason = max(row.reason, str(reasons[0].code), key=_weight)
    return row


def add_row(total: TopicRow, row: TopicRow) -> None:
    """A partition's numbers to its topic's; its subscriptions are the same ones on each partition."""
    for name in ("loaded", "msg_rate_in", "msg_rate_out", "throughput_in", "throughput_out", "producers", "consumers"):
        setattr(total, name, getattr(total, name) + getattr(row, name))
    total.msg_backlog += row.msg_backlog
    total.storage_size += row.storage_size
    total.standing += row.standing
    total.reason = max(total.reason, row.reason, key=_weight)
    total.subscriptions = max(total.subscriptions, row.subscriptions)


ROUTES = (
    Route("GET", f"{ADMIN}/broker-stats/overview", Access.SUPERUSER, overview),
    Route("GET", f"{NAMESPACE}/topicsPage", Access.NAMESPACE, topics_page),
)
