"""RisingWave's names of options in WITH, as the connector reads them."""

from __future__ import annotations

import pytest

from magnetar.pipeline.connect.errors import OptionError
from magnetar.pipeline.connect.options import from_risingwave, read_options, write_options
from magnetar.pipeline.sql.parser import parse_one
from magnetar.pipeline.sql.statements import CreateSource
from magnetar.pipeline.views.source.options import reader_options

PLACE = {"service.url": "pulsar://h:1", "topic": "t"}


@pytest.mark.parametrize(
    ("given", "starting", "time_ms"),
    [
        ({"scan.startup.mode": "earliest"}, "earliest", None),
        ({"Scan.Startup.Mode": "LATEST"}, "latest", None),
        ({"scan.startup.mode": "timestamp", "scan.startup.timestamp.millis": "1700000000000"}, None, 1_700_000_000_000),
        ({"scan.startup.timestamp.millis": "5"}, None, 5),
        ({}, None, None),
    ],
)
def test_where_a_source_begins(given: dict[str, str], starting: str | None, time_ms: int | None) -> None:
    text = ", ".join(f"{name} = '{value}'" for name, value in (PLACE | given).items())
    source = parse_one(f"CREATE SOURCE s (a INT) WITH (connector = 'pulsar', {text}) FORMAT PLAIN ENCODE JSON")
    assert isinstance(source, CreateSource)
    options = read_options(reader_options(source))
    assert (options.starting, options.starting_time_ms) == (starting, time_ms)


def test_a_token_is_a_credential_of_reader_and_writer() -> None:
    options = from_risingwave(PLACE | {"auth.token": "s3cr3t"})
    for connection in (read_options(options).connection, write_options(options).connection):
        assert connection.auth_params == "token:s3cr3t"
        assert "s3cr3t" not in repr(connection)


@pytest.mark.parametrize(
    ("given", "fix"),
    [
        ({"scan.startup.mode": "timestamp"}, "together with scan.startup.timestamp.millis"),
        ({"scan.startup.mode": "soon"}, "give 'earliest', 'latest'"),
        ({"scan.startup.mode": "earliest", "scan.startup.timestamp.millis": "5"}, "together with"),
        ({"scan.startup.mode": "earliest", "startingOffsets": "latest"}, "leave one out"),
        ({"auth.token": "a", "pulsar.client.authParams": "token:b"}, "leave one out"),
    ],
)
def test_what_contradicts_itself_is_refused(given: dict[str, str], fix: str) -> None:
    with pytest.raises(OptionError, match=fix):
        from_risingwave(PLACE | given)
