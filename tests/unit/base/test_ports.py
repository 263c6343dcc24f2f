"""Ports for processes that keep theirs: nobody's, nobody else's, and none that the system gives away meanwhile."""

from __future__ import annotations

import random
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from magnetar.base import ports

WAITS = "from magnetar.base.ports import free_ports; print(*free_ports(20), flush=True); input()"


def test_they_lie_below_those_of_the_system_and_come_once() -> None:
    above = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    if above < ports.LOWEST + ports.FEWEST:
        pytest.skip("the system gives away all of them here")
    given = ports.free_ports(200) + ports.free_ports(200)
    assert len(set(given)) == 400
    assert all(ports.LOWEST <= port < above for port in given)


def test_what_a_process_was_given_no_other_gets_while_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    process = subprocess.Popen([sys.executable, "-c", WAITS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        theirs = [int(word) for word in process.stdout.readline().split()]
        (mine,) = ports.free_ports(1)
        choices = iter([*theirs, mine, theirs[0], mine + 1, *range(mine + 2, mine + 100)])
        monkeypatch.setattr(random, "randrange", lambda *_: next(choices))
        (found,) = ports.free_ports(1)
        assert found > mine
        assert found not in theirs
    finally:
        process.communicate("\n", timeout=30)
    choices = iter(theirs)
    assert ports.free_ports(1) == theirs[:1]


def test_a_port_that_somebody_listens_on_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server((ports.HOST, 0)) as server:
        taken = server.getsockname()[1]
        choices = iter([taken, taken, *range(20_000, 20_100)])
        monkeypatch.setattr(random, "randrange", lambda *_: next(choices))
        assert ports.free_ports(1)[0] >= 20_000 != taken


def test_without_room_below_the_system_chooses(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    range_file = tmp_path / "range"
    range_file.write_text("1024\t65535\n")
    monkeypatch.setattr(ports, "EPHEMERAL", range_file)
    assert len(set(ports.free_ports(50))) == 50
