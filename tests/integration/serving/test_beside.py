"""The server that `pipeline run --serve` starts beside the driver."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import psycopg
import pytest

from magnetar.cli.errors import CommandError
from magnetar.cli.pipeline.serving_beside import check_ports, serving_beside
from tests.support.state_tables import StateTableHarness
from tests.support.waiting import wait_until


def test_it_serves_while_the_block_lasts(home: Path, harness: StateTableHarness) -> None:
    said: list[str] = []
    with serving_beside(str(home / "pipelines/flights"), 0, said.append):
        wait_until(lambda: bool(said), 60)
        assert said[0].startswith("views: postgresql://127.0.0.1:")
        url = said[0].split()[1]
        with psycopg.connect(url, user="me", autocommit=True) as connection:
            assert connection.execute("SELECT count(*) FROM kinds").fetchone() == (3,)
    assert len(said) == 1
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(url, user="me", connect_timeout=2)


def test_it_ends_with_a_driver_that_is_killed(home: Path, harness: StateTableHarness) -> None:
    program = (
        "import sys, time\nfrom magnetar.cli.pipeline.serving_beside import serving_beside\n"
        f"with serving_beside({str(home / 'pipelines/flights')!r}, 0, lambda text: print(text, flush=True)):\n    time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        url = driver.stdout.readline().split()[1]
        psycopg.connect(url, user="me").close()
        driver.kill()

    def gone() -> bool:
        try:
            psycopg.connect(url, user="me", connect_timeout=2).close()
        except psycopg.OperationalError:
            return True
        return False

    wait_until(gone, 60)


def test_without_a_port_there_is_none_and_a_taken_one_is_refused_before_anything_starts() -> None:
    with serving_beside("/nowhere", None, print):
        pass
    check_ports(None, None)
    check_ports(0, 0)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        for ports in ((taken.getsockname()[1], None), (0, taken.getsockname()[1])):
            with pytest.raises(CommandError, match="choose another port"):
                check_ports(*ports)
    with pytest.raises(CommandError, match="add --serve 0"):
        check_ports(None, 8081)
    with pytest.raises(CommandError, match="both 5433"):
        check_ports(5433, 5433)


def test_it_answers_over_http_as_well(home: Path, harness: StateTableHarness) -> None:
    said: list[str] = []
    with serving_beside(str(home / "pipelines/flights"), 0, said.append, 0):
        wait_until(lambda: bool(said), 60)
        url = next(word for word in said[0].split() if word.startswith("http"))
        assert url.endswith("/sql/flights")
        with urllib.request.urlopen(f"{url}?query=SELECT%20count(*)%20FROM%20kinds", timeout=60) as answer:
            assert json.load(answer)["rows"] == [[3]]


def test_a_key_that_is_asked_for_again_comes_from_memory(
    server: object, connection: psycopg.Connection[object]
) -> None:
    """The first look-up reads the runs, and has the view loaded meanwhile."""
    deadline_s = time.monotonic() + 60
    while "from memory" not in str(
        connection.execute("EXPLAIN SELECT * FROM delays WHERE k = 'k7' AND n = 57").fetchall()
    ):
        assert connection.execute("SELECT v FROM delays WHERE k = %s AND n = %s", ["k7", 57]).fetchall() == [(57 / 4,)]
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    assert connection.execute("SELECT v FROM delays WHERE k = %s AND n = %s", ["k7", 57]).fetchall() == [(57 / 4,)]
