"""Partitioned topics whose partitions are at several brokers: a request is put to each partition's broker, and the answers are joined.

As Pulsar does it through its own admin client. With one broker nothing of this happens: the handler sees all partitions itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from starlette.responses import Response

from magnetar.admin.answers import as_json, as_json_in_pieces, done, in_slices
from magnetar.admin.call import Call
from magnetar.admin.documents.partitioned_stats import Sum
from magnetar.admin.redirects import credentials_of
from magnetar.admin.routes.topic import subscriptions, topic_internals, topic_stats, topics
from magnetar.admin.routing import Handler, Route, segments_of
from magnetar.broker.naming import TopicName
from magnetar.broker.peers import PeerAnswer

PARTS_AT_ONCE: Final = 16
"""Partitions asked together; the others wait."""

Answers = list[tuple[TopicName, Any]]
Join = Callable[[Call, Answers], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Spread:
    """`leaf`: the end of the path, and what a partition is asked instead. `skipped`: statuses that count only if all say it."""

    join: Join
    leaf: tuple[str, str] = ("", "")
    skipped: frozenset[int] = frozenset({404})


async def _nothing(call: Call, answers: Answers) -> Response:
    return done()


async def _names(call: Call, answers: Answers) -> Response:
    return as_json(list(dict.fromkeys(name for _, names in answers for name in names)))


async def _properties(call: Call, answers: Answers) -> Response:
    return as_json({key: value for _, found in answers for key, value in found.items()})


async def _last_ids(call: Call, answers: Answers) -> Response:
    return as_json({str(part.partition): last for part, last in answers})


async def _run_status(call: Call, answers: Answers) -> Response:
    found = [status for _, status in answers]
    order = ("RUNNING", "ERROR", "SUCCESS")
    return as_json(next((each for wanted in order for each in found if each["status"] == wanted), found[0]))


async def _metadata(call: Call) -> dict[str, Any]:
    namespaces = call.broker.namespaces
    count = await namespaces.partitions(call.topic)
    return {"partitions": count, "deleted": False, "properties": await namespaces.partitioned_properties(call.topic)}


async def _stats(call: Call, answers: Answers) -> Response:
    total = Sum()
    for _, stats in answers:
        total.add(stats)
        await call.pace.breathe()
    document = total.document
    document["metadata"] = await _metadata(call)
    by_partition = {str(part): stats for part, stats in answers}
    document["partitions"] = by_partition if call.flag("perPartition", default=True) else {}
    return as_json_in_pieces(in_slices(document, call.pace))


async def _internal_stats(call: Call, answers: Answers) -> Response:
    metadata = await _metadata(call)
    metadata.pop("properties")
    document = {"metadata": metadata, "partitions": {str(part): stats for part, stats in answers}}
    return as_json_in_pieces(in_slices(document, call.pace))


async def _info(call: Call, answers: Answers) -> Response:
    document = {"version": 0, "partitions": {str(part): document for part, document in answers}}
    return as_json_in_pieces(in_slices(document, call.pace))


SPREADS: Mapping[Handler, Spread] = {
    topics.unload: Spread(_nothing),
    topics.terminate_partitions: Spread(_last_ids, ("terminate/partitions", "terminate")),
    topics.compact: Spread(_nothing),
    topics.compaction_status: Spread(_run_status),
    topics.stop_compacting: Spread(_nothing),
    topics.trim: Spread(_nothing),
    topics.truncate: Spread(_nothing),
    topic_stats.partitioned_stats: Spread(_stats, ("partitioned-stats", "stats")),
    topic_stats.partitioned_internal: Spread(_internal_stats, ("partitioned-internalStats", "internalStats")),
    topic_internals.info: Spread(_info),
    subscriptions.names: Spread(_names),
    subscriptions.create: Spread(_nothing, skipped=frozenset({409})),
    subscriptions.delete: Spread(_nothing),
    subscriptions.get_properties: Spread(_properties),
    subscriptions.put_properties: Spread(_nothing),
    subscriptions.skip_all: Spread(_nothing),
    subscriptions.expire: Spread(_nothing),
    subscriptions.expire_all_subscriptions: Spread(_nothing),
    subscriptions.reset_to_time: Spread(_nothing),
}
"""What is asked of a partitioned topic as a whole and is at home in its partitions."""


async def spread(call: Call, route: Route) -> Response | None:
    """The joined answer; None when the handler is to answer itself."""
    how = SPREADS.get(route.handler)
    if how is None or call.topic.partition >= 0 or len(await call.broker.cluster.brokers.live()) < 2:
        return None
    count = await call.broker.namespaces.partitions(call.topic)
    if not count:
        return None
    body = await call.body()
    parts = [call.topic.partition_name(index) for index in range(count)]

    async def ask(part: TopicName) -> PeerAnswer:
        owner = (await call.broker.lookup.find(part)).address
        target = partition_target(call, route, part, how.leaf)
        return await call.broker.peers.call(owner, call.request.method, target, body, credentials_of(call))

    answers: list[PeerAnswer] = []
    for first in range(0, count, PARTS_AT_ONCE):
        answers += await asyncio.gather(*(ask(part) for part in parts[first : first + PARTS_AT_ONCE]))
        await call.pace.breathe()
    return await _joined(call, how, parts, answers)


async def _joined(call: Call, how: Spread, parts: list[TopicName], answers: list[PeerAnswer]) -> Response:
    refused = [answer for answer in answers if answer.status >= 300]
    serious = [answer for answer in refused if answer.status not in how.skipped]
    if serious or len(refused) == len(answers):
        shown = (serious or refused)[0]
        return as_json({"reason": shown.reason}, shown.status)
    good = [(part, answer.document) for part, answer in zip(parts, answers, strict=True) if answer.status < 300]
    return await how.join(call, good)


def partition_target(call: Call, route: Route, part: TopicName, leaf: tuple[str, str]) -> str:
    """The request's path and query with the partition in the place of its topic."""
    segments = segments_of(call.request.scope["raw_path"].decode("ascii"))
    place = segments_of(route.path).index("{topic}")
    segments[place] += f"-partition-{part.partition}"
    path = "/" + "/".join(segments)
    if leaf[0]:
        path = path.removesuffix(leaf[0]) + leaf[1]
    query = call.request.scope["query_string"].decode("ascii")
    return f"{path}?{query}" if query else path
