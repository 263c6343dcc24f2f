"""Real processes: the end of exactly the one that was meant is told, and of no other."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from magnetar.base.process_watch import LinuxProcessWatch, ProcessIdentity

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="Linux only")


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.wait()
    assert process.stdin is not None
    process.stdin.close()


def identity_of(process: subprocess.Popen[bytes]) -> ProcessIdentity:
    own = LinuxProcessWatch().own()
    assert own is not None
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return dataclasses.replace(own, pid=process.pid, started=int(fields[19]))


class Heard:
    def __init__(self) -> None:
        self.ended = asyncio.Event()

    async def within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self.ended.wait()
        except TimeoutError:
            return False
        return True


async def test_the_end_of_a_killed_process_is_told_and_a_stopped_one_has_not_ended(
    child: subprocess.Popen[bytes],
) -> None:
    heard = Heard()
    assert LinuxProcessWatch().watch(identity_of(child), heard.ended.set) is not None
    child.send_signal(signal.SIGSTOP)
    assert not await heard.within(0.2)
    child.kill()
    assert await heard.within(5)


async def test_a_watch_that_was_ended_says_nothing(child: subprocess.Popen[bytes]) -> None:
    heard, other = Heard(), Heard()
    stop = LinuxProcessWatch().watch(identity_of(child), heard.ended.set)
    assert stop is not None
    assert LinuxProcessWatch().watch(identity_of(child), other.ended.set) is not None
    stop()
    stop()
    child.kill()
    assert await other.within(5)
    assert not heard.ended.is_set()


async def test_a_process_that_is_gone_already_is_told(child: subprocess.Popen[bytes]) -> None:
    identity = identity_of(child)
    child.kill()
    child.wait()
    heard = Heard()
    assert LinuxProcessWatch().watch(identity, heard.ended.set) is not None
    assert not heard.ended.is_set(), "not before the caller knows that it watches"
    assert await heard.within(5)


async def test_another_process_with_its_number_is_not_taken_for_it(child: subprocess.Popen[bytes]) -> None:
    heard = Heard()
    earlier = dataclasses.replace(identity_of(child), started=identity_of(child).started - 1)
    assert LinuxProcessWatch().watch(earlier, heard.ended.set) is not None
    assert await heard.within(5), "that process has ended, or its number would not have been given away"


@pytest.mark.parametrize("elsewhere", [{"machine": "another"}, {"spaces": "pid:[1] time:[2]"}, {"pid": 0}])
async def test_nothing_is_known_of_processes_elsewhere(
    child: subprocess.Popen[bytes], elsewhere: dict[str, str]
) -> None:
    identity = dataclasses.replace(identity_of(child), **elsewhere)  # type: ignore[arg-type]
    assert LinuxProcessWatch().watch(identity, lambda: pytest.fail("it may be alive")) is None


def test_an_identity_survives_json_and_what_is_none_is_refused() -> None:
    own = LinuxProcessWatch().own()
    assert own is not None
    assert own.pid == os.getpid()
    assert ProcessIdentity.parse(json.loads(json.dumps(own.record()))) == own
    assert ProcessIdentity.parse({"machine": "m", "pid": 1}) is None
    assert ProcessIdentity.parse(own.record() | {"pid": "many"}) is None
