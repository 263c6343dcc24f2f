"""Paths as BookKeeper and Pulsar write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.base.errors import InvalidArgumentError
from magnetar.metadata import paths


@pytest.mark.parametrize(
    ("ledger_id", "path"),
    [
        (0, "/ledgers/00/0000/L0000"),
        (7, "/ledgers/00/0000/L0007"),
        (1234567890, "/ledgers/12/3456/L7890"),
        (2**31 - 2, "/ledgers/21/4748/L3646"),
        (2**31 - 1, "/ledgers/000/0000/0021/4748/L3647"),
        (2**63 - 1, "/ledgers/922/3372/0368/5477/L5807"),
    ],
)
def test_ledger_paths(ledger_id: int, path: str) -> None:
    assert paths.ledger_path(ledger_id) == path
    assert paths.ledger_id_of_path(path) == ledger_id


def test_the_long_form_of_a_small_id() -> None:
    assert paths.long_ledger_path(7) == "/ledgers/000/0000/0000/0000/L0007"
    assert paths.ledger_id_of_path(paths.long_ledger_path(7)) == 7


@pytest.mark.parametrize("ledger_id", [-1, 2**63])
def test_ledger_ids_out_of_range(ledger_id: int) -> None:
    with pytest.raises(InvalidArgumentError):
        paths.ledger_path(ledger_id)


@pytest.mark.parametrize("path", ["/ledgers/00/0000", "/ledgers/00/0000/X0007", "/ledgers/0a/0000/L0007", "/other"])
def test_other_paths_are_no_ledgers(path: str) -> None:
    with pytest.raises(InvalidArgumentError):
        paths.ledger_id_of_path(path)


@pytest.mark.parametrize(
    ("text", "encoded"),
    [
        ("plain-topic_1.x*", "plain-topic_1.x*"),
        ("a b", "a+b"),
        ("a/b", "a%2Fb"),
        ("100%", "100%25"),
        ("~", "%7E"),
        ("+", "%2B"),
        ("é", "%C3%A9"),
        ("topic-partition-3", "topic-partition-3"),
    ],
)
def test_encoding_is_that_of_java(text: str, encoded: str) -> None:
    assert paths.encode(text) == encoded
    assert paths.decode(encoded) == text


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_encoding_round_trips_and_yields_one_part(text: str) -> None:
    encoded = paths.encode(text)
    assert paths.decode(encoded) == text
    assert "/" not in encoded
    assert encoded.isascii()


def test_managed_ledger_paths() -> None:
    name = paths.managed_ledger_name("public", "default", "persistent", "my topic")
    assert name == "public/default/persistent/my+topic"
    path = paths.managed_ledger_path("public", "default", "persistent", "my topic")
    assert path == "/managed-ledgers/public/default/persistent/my+topic"
    assert paths.named_managed_ledger_path(name) == path
    assert paths.cursor_path(name, "my/sub") == path + "/my%2Fsub"
    assert path.startswith(paths.managed_ledgers_path("public", "default") + "/")


def test_policy_and_load_paths() -> None:
    assert paths.policies_path("t", "n") == "/admin/policies/t/n"
    assert paths.local_policies_path("t", "n") == "/admin/local-policies/t/n"
    assert paths.partitioned_topic_path("t", "n", "persistent", "a/b") == (
        "/admin/partitioned-topics/t/n/persistent/a%2Fb"
    )
    assert paths.bundle_ownership_path("t", "n", "0x00000000_0x40000000") == "/namespace/t/n/0x00000000_0x40000000"
    assert paths.broker_path("h:8080") == "/loadbalance/brokers/h:8080"
    assert paths.isolation_policies_path("c") == "/admin/clusters/c/namespaceIsolationPolicies"


def test_bookie_paths() -> None:
    assert paths.available_bookie_path("h:3181") == "/ledgers/available/h:3181"
    assert paths.read_only_bookie_path("h:3181") == "/ledgers/available/readonly/h:3181"
    with pytest.raises(InvalidArgumentError):
        paths.available_bookie_path("readonly")


def test_replication_and_id_paths() -> None:
    assert paths.underreplicated_ledger_path(0x12345) == (
        "/ledgers/underreplication/ledgers/0000/0000/0001/2345/urL0000074565"
    )
    assert paths.long_ledger_id_prefix(1) == "/ledgers/idgen-long/HOB-0000000001/ID-"
    assert paths.sequence_of("/ledgers/idgen/ID-0000000042") == 42


@pytest.mark.parametrize("part", ["", "a/b"])
def test_a_part_cannot_escape_its_place(part: str) -> None:
    with pytest.raises(InvalidArgumentError):
        paths.policies_path("tenant", part)
