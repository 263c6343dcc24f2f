"""Every error that the broker knows has one code of the protocol, and final errors end the clients' calls."""

from __future__ import annotations

import asyncio
import inspect

import pytest

from magnetar.base.errors import BrokerError, MagnetarError
from magnetar.broker import errors
from magnetar.broker.connection.context import ListAnswers, topics_hash
from magnetar.broker.connection.error_codes import CODES, answer_code_of, answer_text_of, code_of, send_code_of, text_of
from magnetar.broker.namespaces.errors import (
    AlreadyExistsError,
    MessageTooLargeError,
    NamespaceNotFoundError,
    PreconditionFailedError,
)
from magnetar.wire.pulsar.PulsarApi_pb2 import ServerError

LEAVES = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, BrokerError) and kind.__module__ == errors.__name__
]
CPP_ENDS_CALL = {
    "AuthenticationError",
    "AuthorizationError",
    "ConsumerBusy",
    "ProducerBlockedQuotaExceededError",
    "ChecksumError",
    "TopicNotFound",
    "ProducerBlockedQuotaExceededException",
    "TooManyRequests",
    "TopicTerminatedError",
    "ProducerBusy",
    "IncompatibleSchema",
    "ConsumerAssignError",
    "NotAllowedError",
    "ProducerFenced",
}
NEVER_FOR_PRODUCER_OR_SUBSCRIBE = {
    "unsupported-version",
    "consumer-not-found",
    "invalid-txn-status",
    "transaction-conflict",
    "transaction-not-found",
}
"""Final, but for other requests, whose clients know them."""


@pytest.mark.parametrize("leaf", LEAVES, ids=lambda leaf: leaf.__name__)
def test_every_leaf_has_a_code_of_its_own(leaf: type[BrokerError]) -> None:
    assert leaf in CODES
    assert [kind for kind, code in CODES.items() if code == CODES[leaf]] == [leaf]
    assert code_of(leaf("why")) == CODES[leaf]


def test_every_code_of_the_protocol_has_its_leaf() -> None:
    assert set(ServerError.values()) == set(CODES.values())


@pytest.mark.parametrize("leaf", LEAVES, ids=lambda leaf: leaf.__name__)
def test_final_errors_end_the_calls_of_the_cpp_client(leaf: type[BrokerError]) -> None:
    """Facts 5.12: with any other code it repeats the call until its operation timeout."""
    if leaf.retriable or leaf.slug in NEVER_FOR_PRODUCER_OR_SUBSCRIBE:
        pytest.skip("not a final answer to PRODUCER or SUBSCRIBE")
    name = ServerError.Name(answer_code_of(leaf("why"), "Pulsar-CPP-v4.2.0"))
    assert name in CPP_ENDS_CALL


def test_other_clients_get_the_exact_code() -> None:
    assert (
        answer_code_of(errors.SubscriptionNotFoundError("x"), "Pulsar-Java-v4.0.0") == ServerError.SubscriptionNotFound
    )
    assert answer_code_of(errors.InvalidTopicNameError("x"), "Pulsar Go 0.21") == ServerError.InvalidTopicName


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (NamespaceNotFoundError("x"), ServerError.TopicNotFound),
        (AlreadyExistsError("x"), ServerError.NotAllowedError),
        (PreconditionFailedError("x"), ServerError.NotAllowedError),
        (MagnetarError("x"), ServerError.PersistenceError),
        (ZeroDivisionError("secret"), ServerError.UnknownError),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_other_layers_raise(error: Exception, code: int) -> None:
    assert code_of(error) == code


def test_clients_read_our_texts_only() -> None:
    assert text_of(MagnetarError("told")) == "told"
    assert "secret" not in text_of(ValueError("secret"))


def test_the_hash_of_a_topic_list_does_not_depend_on_its_order() -> None:
    """CRC32C of the sorted names joined by commas, lowest byte first as Guava prints it."""

    def digest(*names: str) -> str:
        return asyncio.run(ListAnswers().of("namespace", [f"t/{name}" for name in names], [])).digest

    assert digest("b", "a") == digest("a", "b") != digest("a", "c")
    many = [str(number) for number in range(5000)]
    assert digest(*many) == topics_hash([f"t/{name}".encode() for name in sorted(many)])
    assert digest() == topics_hash([]) == "00000000"
    assert topics_hash([b"123456789"]) == (0xE3069283).to_bytes(4, "little").hex()


def test_a_message_that_is_too_large_fails_alone() -> None:
    """Facts 0.3: after any code but ChecksumError the C++ client sends it again for ever."""
    error = MessageTooLargeError("larger than 10 bytes")
    assert send_code_of(error, "Pulsar-CPP-v4.2.0") == ServerError.ChecksumError
    assert send_code_of(error, "Pulsar-Java-v4.0.0") == ServerError.NotAllowedError
    assert send_code_of(errors.PersistenceRefusedError("x"), "Pulsar-CPP-v4.2.0") == ServerError.PersistenceError


def test_the_v5_client_which_shows_nothing_but_the_text_reads_the_name_of_the_code_in_it() -> None:
    error = errors.ProducerFencedError("the topic has other producers")
    assert answer_text_of(error, "Pulsar-Java-v5.0.0-M1") == "ProducerFenced: the topic has other producers"
    assert answer_text_of(error, "Pulsar-Java-v4.2.4") == "the topic has other producers"
