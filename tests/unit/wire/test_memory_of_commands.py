"""Commands that are sent for each message: nothing is left of a million of them.

protobuf's objects give their memory back as a whole, so what is filled again and again must not take more each time.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from magnetar.wire.pulsar import client_commands, commands, parsers
from magnetar.wire.pulsar.PulsarApi_pb2 import BaseCommand, CommandMessage, MessageMetadata

COUNT = 200_000
PAGE_BYTES = 4096
GROWTH_BYTES_MAX = 2 * 1024 * 1024
"""Of the process. The smallest part that protobuf allocates, 16 bytes each time, would be 3 MB."""

ACK = BaseCommand(
    type=BaseCommand.ACK, ack={"consumer_id": 1, "ack_type": 0, "message_id": [{"ledgerId": 3, "entryId": 4}]}
).SerializeToString()
METADATA = MessageMetadata(
    producer_name="producer", sequence_id=1, publish_time=2, partition_key="key"
).SerializeToString()


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES


@pytest.mark.parametrize(
    "work",
    [
        pytest.param(lambda number: commands.send_receipt(1, number, number, 5, number), id="receipt"),
        pytest.param(lambda number: commands.message_header(1, 5, number, -1, 0, None, None, 100), id="message"),
        pytest.param(
            lambda number: commands.message_header(1, 5, number, 3, 0, None, None, 100), id="message of a partition"
        ),
        pytest.param(lambda number: commands.message_header(1, 5, number, -1, 2, None, None, 100), id="message again"),
        pytest.param(
            lambda number: commands.message_header(1, 5, number, 3, 0, [7, 2**63], 4, 100), id="rest of a batch"
        ),
        pytest.param(lambda number: client_commands.send_header(1, number, number, 9, True, True, 100), id="send"),
        pytest.param(lambda number: parsers.parse_frequent_command(ACK), id="parsed command"),
        pytest.param(lambda number: parsers.parse_metadata(METADATA), id="parsed metadata"),
        pytest.param(lambda number: parsers.parse_stored_metadata(METADATA), id="stored metadata"),
    ],
)
def test_nothing_is_left_of_many_commands(work: Callable[[int], object]) -> None:
    for number in range(1_000):
        work(number)
    before = resident_bytes()
    for number in range(COUNT):
        work(number)
    assert resident_bytes() - before < GROWTH_BYTES_MAX


def test_a_message_has_only_what_it_was_given() -> None:
    """The objects are used again: what one message set must not be in the next."""
    rest_of_a_batch = message(3, 2, [1, 2**63], 7)
    assert list(rest_of_a_batch.ack_set) == [1, -(2**63)]
    assert (rest_of_a_batch.redelivery_count, rest_of_a_batch.consumer_epoch) == (2, 7)
    for partition in (-1, 3, -1):
        plain = message(partition, 0, None, None)
        assert plain.message_id.HasField("partition") == (partition >= 0)
        assert not list(plain.ack_set)
        assert not plain.HasField("redelivery_count")
        assert not plain.HasField("consumer_epoch")
        assert (plain.consumer_id, plain.message_id.ledgerId, plain.message_id.entryId) == (1, 5, 6)


def message(partition: int, redelivery_count: int, ack_set: list[int] | None, epoch: int | None) -> CommandMessage:
    header = commands.message_header(1, 5, 6, partition, redelivery_count, ack_set, epoch, 100)
    command = BaseCommand.FromString(header[8:])
    assert command.type == BaseCommand.MESSAGE
    return command.message
