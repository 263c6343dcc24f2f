"""Offsets and options without Spark or a broker."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.pipeline.connect.errors import OffsetError, OptionError
from magnetar.pipeline.connect.offsets import EARLIEST, Position, Range, from_document, parse, split, to_document
from magnetar.pipeline.connect.options import read_options

LEDGERS = st.lists(st.integers(0, 12), min_size=1, max_size=6)


@given(entries=LEDGERS, parts=st.integers(1, 9), data=st.data())
def test_the_parts_of_a_range_join_and_hold_about_as_many_entries(
    entries: list[int], parts: int, data: st.DataObject
) -> None:
    ledgers = [(2 * number, count) for number, count in enumerate(entries)]
    everything = [Position(ledger, entry) for ledger, count in ledgers for entry in range(count)]
    bounds = st.sampled_from([EARLIEST, *everything, Position(100, 0)])
    low, high = sorted((data.draw(bounds), data.draw(bounds)))
    pieces = split(Range("t", low, high), ledgers, parts)
    assert (pieces[0].start, pieces[-1].end) == (low, high)
    assert [each.end for each in pieces[:-1]] == [each.start for each in pieces[1:]]
    inside = [at for at in everything if low <= at < high]
    assert len(pieces) == 1 or len(pieces) <= parts
    held = [sum(1 for at in inside if each.start <= at < each.end) for each in pieces]
    assert sum(held) == len(inside)
    if len(pieces) > 1:
        assert max(held) <= -(-len(inside) // min(parts, len(inside)))


def test_offsets_survive_sparks_log() -> None:
    offsets = {"b": Position(3, 7, 2), "a": EARLIEST}
    document = to_document(offsets)
    assert list(document) == ["a", "b"]
    assert from_document(document) == offsets
    assert parse('{"a": "latest", "b": {"ledger": 3, "entry": 7}}') == {"a": "latest", "b": Position(3, 7, 0)}


@pytest.mark.parametrize(
    "text", ["", "{}", "[1]", '{"a": 3}', '{"a": {"ledger": 1}}', '{"a": {"ledger": 1, "entry": true}}']
)
def test_what_is_no_offset_is_refused(text: str) -> None:
    with pytest.raises(OffsetError, match="earliest"):
        parse(text)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "exactly one of"),
        ({"topic": "a"}, "service.url is missing"),
        ({"topic": "a", "service.url": "localhost:6650"}, "no Pulsar URL"),
        ({"topic": "non-persistent://a/b/c", "service.url": "pulsar://h:1"}, "no persistent topic"),
        ({"topic": "a", "service.url": "pulsar://h:1", "failOnDataloss": "no"}, "true or false"),
        (
            {"topic": "a", "service.url": "pulsar://h:1", "maxMessagesPerTriger": "1"},
            "did you mean maxMessagesPerTrigger",
        ),
        ({"topic": "a", "service.url": "pulsar://h:1", "maxMessagesPerTrigger": "0"}, "at least 1"),
        (
            {"topic": "a", "service.url": "pulsar://h:1", "startingTime": "1", "startingOffsets": "latest"},
            "exclude each",
        ),
    ],
)
def test_options_are_refused_with_the_fix(options: dict[str, str], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        read_options(options)


def test_credentials_are_not_in_the_text_of_options() -> None:
    given = {"topic": "a", "service.url": "pulsar://h:1", "pulsar.client.authParams": "token:secret"}
    options = read_options(given)
    assert options.connection.auth_params == "token:secret"
    assert "secret" not in repr(options)
    assert options.topics == ("persistent://public/default/a",)
