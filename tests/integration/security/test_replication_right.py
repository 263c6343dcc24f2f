"""Who may speak for another cluster: a replicator's name, the markers it brings, and the places that it claims."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from magnetar.broker.replicators.names import SOURCE_POSITION_PROPERTY
from magnetar.testing.server import ServerProcess
from magnetar.wire.pulsar.frames import encode_frame
from magnetar.wire.pulsar.headers import parse_metadata, payload_of, with_checksum
from magnetar.wire.pulsar.markers import SnapshotRequest, SnapshotResponse, SubscriptionUpdate, encode
from magnetar.wire.pulsar.PulsarApi_pb2 import BaseCommand, MessageMetadata, ServerError
from magnetar.wire.pulsar.PulsarMarkers_pb2 import MarkerType
from tests.integration.security.conftest import Secured, check_log, error_code, grant, start
from tests.support.raw import RawClient, send_command, send_frame
from tests.support.waiting import wait_until

FROM_WEST = "pulsar.repl.west-->standalone"
MARKERS = sorted(MarkerType.values())
NAMES = itertools.count()


@pytest.fixture(scope="module")
def replicating(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """Tenant `t` may be replicated with `west` and `north`; `peer` and `other-peer` are their replicators, and may produce in `t/ns`."""
    server = start(tmp_path_factory.mktemp("replicating"), replicatorRoles="west:peer, north:other-peer")
    try:
        grant(server)
        for cluster in ("west", "north"):
            server.admin("PUT", f"clusters/{cluster}", {"serviceUrl": "http://127.0.0.1:1"})
        everywhere = {"adminRoles": ["tenant-admin"], "allowedClusters": ["standalone", "west", "north"]}
        server.admin("POST", "tenants/t", everywhere)
        for role in ("peer", "other-peer"):
            server.admin("POST", f"namespaces/t/ns/permissions/{role}", ["produce"])
        yield server
        check_log(server.process.log())
    finally:
        server.process.close()


@pytest.fixture
def topic() -> str:
    return f"persistent://t/ns/replicated-{next(NAMES)}"


def replicator_command(client: RawClient, topic: str, name: str, **told: str) -> BaseCommand:
    """`told`: of the producer's metadata, with dashes for underscores."""
    command = BaseCommand(type=BaseCommand.PRODUCER)
    request = command.producer
    request.topic, request.producer_id, request.request_id = topic, 1, client.request_id()
    request.producer_name, request.user_provided_producer_name = name, True
    for key, value in told.items():
        request.metadata.add(key=f"magnetar.{key.replace('_', '-')}", value=value)
    return command


def from_west(client: RawClient, topic: str, name: str = FROM_WEST, **told: str) -> BaseCommand:
    """PRODUCER of a replicator; PRODUCER_SUCCESS or the ERROR."""
    client.send(replicator_command(client, topic, name, **told))
    return client.receive()[0]


def at_place(place: str, source: str = "west", **fields: object) -> bytes:
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, replicated_from=source)
    metadata.properties.add(key=SOURCE_POSITION_PROPERTY, value=place)
    for name, value in fields.items():
        setattr(metadata, name, value)
    return with_checksum(metadata, b"x")


def send(client: RawClient, data: bytes, marker: bool = False) -> BaseCommand:
    command = send_command(0)
    command.send.marker = marker
    client.send_bytes(encode_frame(command.SerializeToString(), data))
    return client.receive()[0]


def stored(answer: BaseCommand) -> bool:
    """False for a repeat. Fails for a refusal."""
    assert answer.type == BaseCommand.SEND_RECEIPT, answer
    return answer.send_receipt.message_id.ledgerId != 2**64 - 1


def refused(answer: BaseCommand) -> bool:
    return answer.type == BaseCommand.SEND_ERROR and answer.send_error.error == ServerError.NotAllowedError


def path_of(topic: str) -> str:
    return f"/admin/v2/{topic.replace('://', '/')}"


def subscriptions(server: Secured, topic: str) -> dict[str, int]:
    found = server.http("GET", f"{path_of(topic)}/stats").json()["subscriptions"]
    return {name: stats["msgBacklog"] for name, stats in found.items()}


# ---- The right


@pytest.mark.parametrize("role", ["producer", "tenant-admin", "consumer", "stranger", "other-peer", "anonymous"])
@pytest.mark.parametrize("name", [FROM_WEST, "pulsar.repl.west", "pulsar.repl.", "pulsar.repl.west-->east"])
def test_a_replicators_name_takes_the_right_to_replicate(
    replicating: Secured, topic: str, role: str, name: str
) -> None:
    with replicating.raw(role) as client:
        answer = from_west(client, topic, name)
        assert error_code(answer) == ServerError.AuthorizationError
    assert replicating.http("GET", f"{path_of(topic)}/stats").status_code == 404, "nothing came into being"


def test_the_refusal_says_what_to_do(replicating: Secured, topic: str) -> None:
    with replicating.raw("producer") as client:
        answer = from_west(client, topic)
        assert "replicatorRoles" in answer.error.message
        assert "another name" in answer.error.message
        assert client.producer(topic, 1, producer_name="pulsar.replica").type == BaseCommand.PRODUCER_SUCCESS


@pytest.mark.parametrize("role", ["peer", "root"])
def test_who_has_the_right_replicates(replicating: Secured, topic: str, role: str) -> None:
    with replicating.raw(role) as client:
        assert from_west(client, topic).type == BaseCommand.PRODUCER_SUCCESS
        assert stored(send(client, at_place("7:0")))
        assert not stored(send(client, at_place("7:0")))


@pytest.mark.parametrize("cluster", ["nowhere", "standalone", ""])
def test_nobody_replicates_from_a_cluster_that_the_tenant_does_not_know(
    replicating: Secured, topic: str, cluster: str
) -> None:
    with replicating.raw("root") as client:
        answer = from_west(client, topic, f"pulsar.repl.{cluster}-->standalone")
        assert error_code(answer) == ServerError.NotAllowedError
        assert "--allowed-clusters" in answer.error.message


@pytest.mark.parametrize("source", ["west|3", "west|", "west|x", "west|3|4"])
def test_what_is_remembered_of_a_cluster_is_not_named_by_its_replicator(
    replicating: Secured, topic: str, source: str
) -> None:
    """A topic that is no segment has one source in each cluster; another name would be one more that is never forgotten."""
    with replicating.raw("peer") as client:
        answer = from_west(client, topic, f"pulsar.repl.{source}-->standalone")
        assert error_code(answer) == ServerError.NotAllowedError


def test_a_server_that_asks_nobody_believes_its_own_configuration_only(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    topic = "persistent://public/default/open"
    server = ServerProcess(tmp_path_factory.mktemp("open")).start()
    try:
        with RawClient(server.port) as client:
            client.connect()
            assert error_code(from_west(client, topic)) == ServerError.NotAllowedError
            assert client.producer(topic).type == BaseCommand.PRODUCER_SUCCESS
    finally:
        server.close()


def test_a_produce_only_role_moves_no_cursor_and_makes_no_subscription(replicating: Secured, topic: str) -> None:
    with replicating.raw("tenant-admin") as owner:
        assert owner.subscribe(topic, "kept", replicate_subscription_state=True).type == BaseCommand.SUCCESS
        assert owner.producer(topic).type == BaseCommand.PRODUCER_SUCCESS
        receipts = [owner.publish(b"m", number).send_receipt.message_id for number in range(100)]
    last = receipts[-1].ledgerId, receipts[-1].entryId
    updates = [SubscriptionUpdate(name, {"standalone": last}) for name in ("kept", "made")]
    for name in (FROM_WEST, "ordinary"):
        with replicating.raw("producer") as attacker:
            if from_west(attacker, topic, name).type != BaseCommand.PRODUCER_SUCCESS:
                continue
            for update in updates:
                send(attacker, encode(update, 1), marker=True)
    assert subscriptions(replicating, topic) == {"kept": 100}


# ---- Places


@pytest.mark.parametrize(
    "place",
    [
        f"{2**62}:0",
        f"7:{2**62}",
        f"{2**63}:0",
        f"{'9' * 19}:{'9' * 19}",
        f"{'9' * 5000}:0",
        f"{2**33 + 8}:0",
        "7:-1",
        "seven:0",
        "",
    ],
    ids=lambda place: place[:20],
)
def test_a_place_that_jumps_is_refused_and_forgotten(replicating: Secured, topic: str, place: str) -> None:
    with replicating.raw("peer") as client:
        assert from_west(client, topic).type == BaseCommand.PRODUCER_SUCCESS
        assert stored(send(client, at_place("7:1")))
        assert refused(send(client, at_place(place)))
        assert stored(send(client, at_place("7:2"))), "the link goes on"
    replicating.admin("PUT", f"{topic.replace('://', '/')}/unload")
    with replicating.raw("peer") as client:
        assert from_west(client, topic).type == BaseCommand.PRODUCER_SUCCESS
        assert not stored(send(client, at_place("7:2")))
        assert stored(send(client, at_place("8:0")))


def test_a_place_behind_the_end_of_the_log_does_not_count(replicating: Secured, topic: str) -> None:
    """What a bad value left behind goes when the replicator comes back, and says where its log ends."""
    with replicating.raw("peer") as client:
        assert from_west(client, topic, instance="i", log_end="7:3").type == BaseCommand.PRODUCER_SUCCESS
        assert stored(send(client, at_place("7:3")))
        assert stored(send(client, at_place("100000:3")))
        assert not stored(send(client, at_place("7:4")))
    with replicating.raw("peer") as client:
        assert from_west(client, topic, instance="i", log_end="7:5").type == BaseCommand.PRODUCER_SUCCESS
        assert stored(send(client, at_place("7:4")))
        assert stored(send(client, at_place("7:5")))
    with replicating.raw("peer") as client:
        assert from_west(client, topic, instance="i", log_end="7:5").type == BaseCommand.PRODUCER_SUCCESS
        assert not stored(send(client, at_place("7:5"))), "what lies in the log is remembered"


def test_one_replicator_a_cluster_at_a_time(replicating: Secured, topic: str) -> None:
    """A second one, under whatever name, could make the first one's messages look like repeats."""
    with replicating.raw("peer") as first, replicating.raw("root") as second:
        assert from_west(first, topic, instance="i").type == BaseCommand.PRODUCER_SUCCESS
        assert stored(send(first, at_place("7:3")))
        for name in (FROM_WEST, "pulsar.repl.west", "pulsar.repl.west-->elsewhere"):
            second.send(replicator_command(second, topic, name, log_end="1:1"))
            first.answer_ping()
            assert error_code(second.receive()[0]) == ServerError.ProducerBusy
        assert not stored(send(first, at_place("7:3"))), "the refused one changed nothing"


# ---- Markers


@pytest.mark.parametrize("domain", ["persistent", "non-persistent"])
@pytest.mark.parametrize("kind", MARKERS)
def test_markers_are_refused_from_everybody_but_replicators(replicating: Secured, domain: str, kind: int) -> None:
    topic = f"{domain}://t/ns/one"
    for role in ("producer", "topic-role", "tenant-admin", "root"):
        with replicating.raw(role) as client:
            assert client.producer(topic).type == BaseCommand.PRODUCER_SUCCESS
            for fields in (
                {},
                {"num_messages_in_batch": 1},
                {"uuid": "u", "num_chunks_from_msg": 2, "chunk_id": 0, "total_chunk_msg_size": 2},
            ):
                client.send_bytes(send_frame(b"x", marker_type=kind, **fields))
                assert refused(client.receive()[0]), (role, fields)
            assert client.publish(b"a message", 1).type == BaseCommand.SEND_RECEIPT, "the producer goes on"


def test_a_client_cannot_say_that_a_message_came_from_elsewhere(replicating: Secured, topic: str) -> None:
    with replicating.raw("producer") as client:
        assert client.producer(topic).type == BaseCommand.PRODUCER_SUCCESS
        for source in ("west", "standalone", "nowhere"):
            assert refused(client.publish(b"x", replicated_from=source))
        assert client.publish(b"x", 1).type == BaseCommand.SEND_RECEIPT


def test_a_replicator_brings_what_its_own_cluster_wrote(replicating: Secured, topic: str) -> None:
    local = (MarkerType.REPLICATED_SUBSCRIPTION_SNAPSHOT, MarkerType.TXN_COMMIT, MarkerType.TXN_ABORT)
    with replicating.raw("peer") as client:
        assert from_west(client, topic).type == BaseCommand.PRODUCER_SUCCESS
        for data in (
            at_place("7:1", "north"),
            at_place("7:1", ""),
            at_place("7:1", txnid_least_bits=5, txnid_most_bits=1),
            *(at_place("7:1", marker_type=kind) for kind in local),
            *(at_place("7:1", marker_type=kind, txnid_least_bits=5) for kind in local),
        ):
            answer = send(client, data)
            assert answer.type == BaseCommand.SEND_ERROR, answer
        assert stored(send(client, at_place("7:1")))


def test_markers_of_a_third_cluster_are_ignored(replicating: Secured, topic: str) -> None:
    """`peer` replicates from west: what it says for north is not believed."""
    entries = f"{path_of(topic)}/internalStats"
    with replicating.raw("peer") as client:
        assert from_west(client, topic).type == BaseCommand.PRODUCER_SUCCESS
        for marker in (SnapshotRequest("s", "north"), SnapshotResponse("s", "north", (1, 1))):
            assert stored(send(client, _from(marker, "west"), marker=True))
        assert stored(send(client, at_place("7:1"))), "answers lie before it"
        assert replicating.http("GET", entries).json()["entriesAddedCounter"] == 3, "north is not answered"
        assert stored(send(client, _from(SnapshotRequest("s", "west"), "west"), marker=True))
        assert stored(send(client, at_place("7:2")))
        assert replicating.http("GET", entries).json()["entriesAddedCounter"] == 6, "west is"


def test_an_update_of_an_internal_cursor_is_ignored(replicating: Secured, topic: str) -> None:
    """Other clusters' updates name subscriptions; the one behind a bad one is obeyed."""
    with replicating.raw("peer") as client:
        assert from_west(client, topic).type == BaseCommand.PRODUCER_SUCCESS
        assert stored(send(client, at_place("7:1")))
        for name in ("pulsar.dedup", "pulsar.repl.north", "__compaction", "theirs"):
            update = SubscriptionUpdate(name, {"standalone": (0, 0)})
            assert stored(send(client, _from(update, "west"), marker=True))
    wait_until(lambda: "theirs" in subscriptions(replicating, topic), what="the update behind")
    assert list(subscriptions(replicating, topic)) == ["theirs"]

    def cursors() -> set[str]:
        return set(replicating.http("GET", f"{path_of(topic)}/internalStats").json()["cursors"])

    # The server's own cursor for markers is opened because of `theirs`, and after it.
    wait_until(lambda: "pulsar.replicated.subscriptions" in cursors(), what="the cursor of the markers")
    assert cursors() == {"theirs", "pulsar.dedup", "pulsar.replicated.subscriptions"}


def _from(marker: SnapshotRequest | SnapshotResponse | SubscriptionUpdate, source: str) -> bytes:
    data = encode(marker, 1)
    metadata = parse_metadata(data)
    metadata.replicated_from = source
    return with_checksum(metadata, payload_of(data))


# ---- A name that is in use


def test_a_producers_name_is_not_taken_over_by_another_role(replicating: Secured) -> None:
    topic = "persistent://t/ns/one"
    generated = {"producer_name": "standalone-9-9", "user_provided_producer_name": False}
    with (
        replicating.raw("producer") as owner,
        replicating.raw("topic-role") as other,
        replicating.raw("producer") as again,
        replicating.raw("root") as root,
    ):
        assert owner.producer(topic, 1, epoch=0, **generated).type == BaseCommand.PRODUCER_SUCCESS
        taking = BaseCommand(type=BaseCommand.PRODUCER)
        taking.producer.topic, taking.producer.producer_id, taking.producer.request_id = topic, 1, 1
        taking.producer.producer_name, taking.producer.user_provided_producer_name = "standalone-9-9", False
        taking.producer.epoch = 7
        other.send(taking)
        owner.answer_ping()
        assert error_code(other.receive()[0]) == ServerError.ProducerBusy
        assert owner.publish(b"still mine").type == BaseCommand.SEND_RECEIPT
        assert again.producer(topic, 1, epoch=1, **generated).type == BaseCommand.PRODUCER_SUCCESS, "the same role"
        assert root.producer(topic, 1, epoch=2, **generated).type == BaseCommand.PRODUCER_SUCCESS, "a superuser"
