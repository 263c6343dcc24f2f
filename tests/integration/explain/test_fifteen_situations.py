"""The table of situations in which people ask why: command, HTTP and console name the right cause, in the same words."""

from __future__ import annotations

import html
import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

import pulsar
import pytest
import requests
from pulsar.schema import AvroSchema, Integer, Record, String

from magnetar.admin.client import AdminClient
from magnetar.base.clock import SystemClock
from magnetar.base.ports import free_ports
from magnetar.pipeline.views.control.listing import overview
from magnetar.pipeline.views.control.why import report_of_overview
from magnetar.testing.cluster import ClusterProcesses
from magnetar.testing.server import ServerProcess
from tests.integration.admin.conftest import Api
from tests.integration.explain.conftest import ANSWER_S_MAX, Explainer
from tests.integration.explain.test_subscriptions import acknowledging, key_shared, send_keys
from tests.integration.transactions.test_messages import begin, path_of, publish
from tests.support.messages import send_all, take
from tests.support.raw_transactions import RawTransactions
from tests.support.stored_pipelines import MINUTE_US, StoredPipeline
from tests.support.waiting import wait_until

COUNT = 12
SETTINGS = {
    "maxUnackedMessagesPerSubscription": 200,
    "backlogQuotaDefaultRetentionPolicy": "producer_exception",
    "backlogQuotaCheckIntervalInSeconds": 0.2,
}


class Stage:
    """What a situation is made of; `stack` takes it down again."""

    def __init__(
        self, server: ServerProcess, client: pulsar.Client, topic: str, directory: Path, stack: ExitStack
    ) -> None:
        self.server = server
        self.client = client
        self.topic = topic
        self.directory = directory
        self.stack = stack
        self.api = Api(server)
        self.explain = Explainer(server.http_url)

    def about(self) -> dict[str, Any]:
        return {"topic": self.topic, "subscription": "sub"}

    def send(self, count: int = COUNT) -> None:
        producer = self.client.create_producer(self.topic, batching_enabled=False)
        send_all(producer, [b"x"] * count)
        producer.close()


Asked = dict[str, Any]


def frozen_consumer(stage: Stage) -> Asked:
    key_shared(stage.client, stage.topic, "frozen")
    key_shared(stage.client, stage.topic, "quick", message_listener=acknowledging)
    send_keys(stage.client, stage.topic)
    return stage.about()


def unacknowledged(stage: Stage) -> Asked:
    consumer = stage.client.subscribe(stage.topic, "sub", pulsar.ConsumerType.Shared)
    stage.send(250)
    take(consumer, 200, ack=False)
    return stage.about()


def backlog_quota(stage: Stage) -> Asked:
    stage.client.subscribe(stage.topic, "sub").close()
    quota = {"limitSize": 100, "policy": "producer_exception"}
    stage.api.post(f"{path_of(stage.topic)}/backlogQuota?backlogQuotaType=destination_storage", quota)
    stage.client.create_producer(stage.topic).send(b"x" * 1000)
    return {"topic": stage.topic}


def expired(stage: Stage) -> Asked:
    stage.client.subscribe(stage.topic, "sub").close()
    stage.send()
    stage.api.post(f"{path_of(stage.topic)}/subscription/sub/expireMessages/0")
    return stage.about()


def unloaded(stage: Stage) -> Asked:
    stage.send()
    stage.api.put(f"{path_of(stage.topic)}/unload")
    return {"topic": stage.topic}


def skewed_key(stage: Stage) -> Asked:
    key_shared(stage.client, stage.topic, "c1")
    key_shared(stage.client, stage.topic, "c2", message_listener=acknowledging)
    owners = {
        key: stage.explain.ask("key", topic=stage.topic, key=key, subscription="sub")["details"]["subscriptions"][0]
        for key in map(str, range(20))
    }
    hot = next(key for key, row in owners.items() if row["consumer"] == "c1")
    producer = stage.client.create_producer(stage.topic, batching_enabled=False)
    for _ in range(60):
        producer.send(b"x", partition_key=hot)
    producer.close()
    return stage.about()


def far_cluster(stage: Stage) -> Asked:
    (port,) = free_ports(1)
    address = {"serviceUrl": f"http://127.0.0.1:{port}", "brokerServiceUrl": f"pulsar://127.0.0.1:{port}"}
    stage.api.put("clusters/away", address)
    stage.api.put("tenants/geo", {"allowedClusters": ["standalone", "away"]})
    stage.api.put("namespaces/geo/ns", {"replication_clusters": ["standalone", "away"]})
    stage.topic = "persistent://geo/ns/t"
    stage.send()
    return {"topic": stage.topic}


class Order(Record):
    number = Integer()


class Other(Record):
    number = String()


def other_schema(stage: Stage) -> Asked:
    stage.client.subscribe(stage.topic, "sub", schema=AvroSchema(Order)).close()
    stage.client.create_producer(stage.topic, schema=AvroSchema(Order)).send(Order(number=1))
    with pytest.raises(pulsar.PulsarException):
        stage.client.subscribe(stage.topic, "sub", schema=AvroSchema(Other))
    return stage.about()


def uncovered_range(stage: Stage) -> Asked:
    policy = pulsar.ConsumerKeySharedPolicy(pulsar.KeySharedMode.Sticky, False, [(0, 30000)])
    key_shared(stage.client, stage.topic, "half", key_shared_policy=policy, message_listener=acknowledging)
    send_keys(stage.client, stage.topic)
    return stage.about()


def retry_loop(stage: Stage) -> Asked:
    retry = f"{stage.topic}-sub-RETRY"
    stage.client.subscribe(retry, "sub").close()
    stage.client.create_producer(retry).send(b"x", properties={"RECONSUMETIMES": "7", "REAL_TOPIC": stage.topic})
    return {"topic": retry, "subscription": "sub"}


def draining(stage: Stage) -> Asked:
    first = key_shared(stage.client, stage.topic, "former", receiver_queue_size=1000)
    send_keys(stage.client, stage.topic)
    take(first, 100, ack=False)
    key_shared(stage.client, stage.topic, "new", message_listener=acknowledging)
    send_keys(stage.client, stage.topic)
    return stage.about()


def open_transaction(stage: Stage) -> Asked:
    raw = stage.stack.enter_context(RawTransactions(stage.server.port))
    raw.producer(stage.topic)
    raw.subscribe(stage.topic, "sub")
    txn = begin(raw, stage.topic)
    stage.stack.callback(raw.abort, txn)
    raw.publish_in(txn, b"inside", sequence_id=1)
    publish(raw, b"behind", 2)
    return stage.about()


def delayed(stage: Stage) -> Asked:
    stage.client.subscribe(stage.topic, "sub", pulsar.ConsumerType.Shared)
    stage.client.create_producer(stage.topic).send(b"later", deliver_at=4_000_000_000_000)
    return stage.about()


def watermark(stage: Stage) -> Asked:
    """Its driver's report; tests/integration/pipeline/test_explain_view.py has one that really runs."""
    name = stage.topic.rpartition("/")[2]
    topics = (f"persistent://public/default/{name}-a", f"persistent://public/default/{name}-b")
    stored = StoredPipeline(stage.directory, name, topics=topics)
    stored.commit({"a": 24 * MINUTE_US, "b": 9 * MINUTE_US})
    stage.stack.enter_context(stored.driven(lags={"a": 0, "b": 0}))
    admin = stage.stack.enter_context(AdminClient(stage.server.http_url))
    admin.pipelines.report(name, report_of_overview(overview(str(stored.directory), SystemClock())))
    stage.stack.callback(admin.pipelines.forget, name)
    return {"pipeline": name, "view": "w"}


def lost_bookie(stage: Stage) -> Asked:
    """On a cluster of its own: three bookies, each entry on two of them."""
    cluster = stage.stack.enter_context(ClusterProcesses(stage.directory / "c", bookies=3, brokers=1))
    stage.explain = Explainer(cluster.http_url)
    client = pulsar.Client(cluster.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    stage.stack.callback(client.close)
    sent = client.create_producer("lost").send(b"x")
    segments = stage.explain.ask("ledger", id=sent.ledger_id())["details"]["segments"]
    lost = segments[0]["ensemble"][0]
    cluster.kill(next(name for name, bookie_id in cluster.bookie_ids.items() if bookie_id == lost))
    return {"id": sent.ledger_id()}


class Situation(NamedTuple):
    """`code`: the cause that has to be named; `first`: before every other reason."""

    stage: Callable[[Stage], Asked]
    kind: str
    code: str
    first: bool = True


SITUATIONS = (
    Situation(frozen_consumer, "subscription", "consumer-frozen"),
    Situation(unacknowledged, "subscription", "unacked-limit-subscription"),
    Situation(backlog_quota, "topic", "quota-exceeded"),
    Situation(expired, "subscription", "expired", first=False),
    Situation(unloaded, "topic", "topic-not-loaded"),
    Situation(skewed_key, "subscription", "key-skewed", first=False),
    Situation(lost_bookie, "ledger", "copies-missing"),
    Situation(far_cluster, "topic", "replicator-disconnected"),
    Situation(watermark, "view", "view-waits-for-watermark"),
    Situation(other_schema, "subscription", "schema-incompatible"),
    Situation(uncovered_range, "subscription", "range-uncovered"),
    Situation(retry_loop, "subscription", "retried-often", first=False),
    Situation(draining, "subscription", "slot-draining"),
    Situation(open_transaction, "subscription", "transaction-open"),
    Situation(delayed, "subscription", "delayed"),
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    process = ServerProcess(tmp_path_factory.mktemp("fifteen") / "data", SETTINGS).start()
    yield process
    process.close()


def test_there_are_fifteen() -> None:
    assert len({each.code for each in SITUATIONS}) == 15


@pytest.mark.parametrize(
    "situation",
    [pytest.param(each, marks=pytest.mark.long if each.stage is lost_bookie else ()) for each in SITUATIONS],
    ids=[each.code for each in SITUATIONS],
)
def test_the_cause_is_named_by_command_http_and_console(
    situation: Situation, server: ServerProcess, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        stage = Stage(server, client, topic, tmp_path, stack)
        asked = situation.stage(stage)

        def named() -> bool:
            codes = [reason["code"] for reason in stage.explain.ask(situation.kind, **asked)["reasons"]]
            return situation.code in (codes[:1] if situation.first else codes)

        wait_until(named, 60, what=situation.code)
        # what goes on meanwhile (a redelivery, another look) may change numbers between two answers: the next three agree
        wait_until(lambda: agree(stage.explain, situation, asked), 60, what="the same answer in three ways")


def agree(explain: Explainer, situation: Situation, asked: Asked) -> bool:
    """Whether command, route and page give the same reasons, in the same order and words."""
    document = explain.ask(situation.kind, **asked)
    reasons = [(reason["code"], reason["text"], reason["change"]) for reason in document["reasons"]]
    told = json.loads(by_command(explain, situation.kind, asked))
    by_page = page_reasons(explain, situation.kind, asked)
    return (
        [(reason["code"], reason["text"], reason["change"]) for reason in told["reasons"]] == reasons
        and by_page == reasons
        and told["verdict"] == document["verdict"]
        and situation.code in {code for code, _, _ in reasons}
    )


def by_command(explain: Explainer, kind: str, asked: Asked) -> str:
    if kind == "view":
        words = [asked["view"], "--pipeline", asked["pipeline"], "--reported"]
    elif kind == "ledger":
        words = [str(asked["id"])]
    elif kind == "topic":
        words = [asked["topic"]]
    else:
        words = [asked[kind], "--topic", asked["topic"]]
    return explain.command(kind, *words, as_json=True)


def page_reasons(explain: Explainer, kind: str, asked: Asked) -> list[tuple[str, str, str]]:
    """Of the console's page, which has to come within a second; the quickest of a few counts."""
    for left in reversed(range(5)):
        began_s = time.monotonic()
        answer = requests.get(f"{explain.http_url}/console/explain/{kind}?{urlencode(asked)}", timeout=60)
        if time.monotonic() - began_s < ANSWER_S_MAX:
            break
        assert left, "the page took more than a second"
    assert answer.status_code == 200, answer.text
    parts = re.findall(
        r'<section class="card">\s*<h2>(.*?)</h2>\s*<p>(.*?)</p>.*?<dd class="mono">(.*?)</dd>', answer.text, re.DOTALL
    )
    return [(html.unescape(code), html.unescape(text), html.unescape(change)) for text, change, code in parts]
