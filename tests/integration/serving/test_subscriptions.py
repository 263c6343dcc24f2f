"""SUBSCRIBE: a view's changes as they commit, through psycopg's cursors, COPY in psql, and the command; compared with what was done."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import errors

from tests.support.served_views import ViewServer
from tests.support.state_tables import StateTableHarness

Key = tuple[Any, Any]


def applied(rows: dict[Key, float], changes: list[tuple[Any, ...]]) -> dict[Key, float]:
    """The rows after these changes; each one has to fit."""
    found = dict(rows)
    for _, op, k, n, v in changes:
        if op in ("insert", "update_insert"):
            assert (k, n) not in found
            found[k, n] = v
        else:
            assert found.pop((k, n)) == v
    return found


def test_a_cursor_over_a_subscription_gives_each_change_once(server: ViewServer, harness: StateTableHarness) -> None:
    rng = random.Random(1)
    with psycopg.connect(server.dsn()) as connection:
        connection.execute("DECLARE changes CURSOR FOR SUBSCRIBE delays")
        first: list[tuple[Any, ...]] = []
        while len(first) < len(harness.rows()):
            first += connection.execute("FETCH 700 FROM changes").fetchall()
        rows = applied({}, first)
        assert rows == harness.rows()
        assert connection.execute("FETCH 10 FROM changes WITH (timeout = '100ms')").fetchall() == []
        seen = 0
        for _ in range(12):
            before = harness.rows()
            keys = rng.sample(sorted(before, key=str), 5)
            changes: dict[Any, float | None] = {key: None for key in keys[:2]}
            changes |= {key: rng.random() for key in keys[2:]} | {(f"s{rng.randrange(10**6)}", 1): 1.0}
            harness.epoch(changes)
            epoch, got = harness.manifest.epoch, []
            while len(got) < 2 + 2 * 3 + 1:
                got += connection.execute("FETCH ALL FROM changes").fetchall()
            assert {row[0] for row in got} == {epoch}
            assert [row[1] for row in got] == ["delete"] * 2 + ["insert"] + ["update_delete", "update_insert"] * 3
            rows = applied(rows, got)
            assert rows == harness.rows()
            seen += len(got)
        assert seen == 12 * 9


def test_a_subscription_begins_behind_an_epoch_that_is_kept(server: ViewServer, harness: StateTableHarness) -> None:
    since, before = harness.manifest.epoch, harness.rows()
    harness.epoch({("since", 1): 1.0})
    harness.epoch({("since", 1): 2.0, ("since", 2): 1.0})
    with psycopg.connect(server.dsn()) as connection:
        connection.execute(f"DECLARE changes CURSOR FOR SUBSCRIBE delays SINCE EPOCH {since}")
        got: list[tuple[Any, ...]] = []
        while len(got) < 4:
            got += connection.execute("FETCH 100 changes").fetchall()
        assert [row[:2] for row in got] == [
            (since + 1, "insert"), (since + 2, "insert"), (since + 2, "update_delete"), (since + 2, "update_insert"),
        ]  # fmt: skip
        assert applied(before, got) == harness.rows()
        with pytest.raises(errors.InvalidParameterValue, match="has not been yet"):
            connection.execute("DECLARE later CURSOR FOR SUBSCRIBE delays SINCE EPOCH 100000")


def test_a_stream_ends_when_it_is_cancelled(server: ViewServer, harness: StateTableHarness) -> None:
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        rows = connection.cursor().stream("SUBSCRIBE TO kinds")
        assert {next(rows)[2] for _ in range(3)} == {1, 2, 3}
        connection.cancel()
        with pytest.raises(errors.QueryCanceled):
            list(rows)
        with pytest.raises(errors.UndefinedTable):
            connection.execute("SUBSCRIBE nothing")
        with connection.cursor().copy("COPY (SUBSCRIBE delays WITH (snapshot = false)) TO STDOUT") as copy:
            harness.epoch({("copied", 1): 5.0})
            line = next(iter(copy))
            assert bytes(line).decode() == f"{harness.manifest.epoch}\tinsert\tcopied\t1\t5\n"
            connection.cancel()
            with pytest.raises(errors.QueryCanceled):
                list(copy)
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_the_command_prints_changes(home: Path, harness: StateTableHarness) -> None:
    since = harness.manifest.epoch
    harness.epoch({("printed", 1): 1.0})
    harness.epoch({("printed", 1): None})
    command = [
        sys.executable,
        "-m",
        "magnetar",
        "pipeline",
        "subscribe",
        "delays",
        "-p",
        "flights",
        "--json",
        "--count",
        "2",
    ]
    done = subprocess.run(
        [*command, "--since-epoch", str(since)],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | {"MAGNETAR_HOME": str(home)},
    )
    assert done.returncode == 0, done.stderr
    assert [json.loads(line) for line in done.stdout.splitlines()] == [
        {"_epoch": since + 1, "_op": "insert", "k": "printed", "n": 1, "v": 1.0},
        {"_epoch": since + 2, "_op": "delete", "k": "printed", "n": 1, "v": 1.0},
    ]
    done = subprocess.run(
        [*command, "--since-epoch", "0"],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | {"MAGNETAR_HOME": str(home)},
    )
    assert done.returncode == 1 or done.stdout, done.stderr
