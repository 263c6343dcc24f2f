"""The consumer processes: started, killed with SIGKILL, and stopped."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import TracebackType

from magnetar.cli.demo import records
from magnetar.cli.demo.verdict import Log
from magnetar.cli.errors import CommandError

STOP_TIMEOUT_S = 10.0


class Consumer:
    """One process and the file it writes to."""

    def __init__(self, name: str, url: str, topic: str, folder: Path) -> None:
        self.name = name
        self.killed = False
        self.file = folder / f"{name}.records"
        command = [sys.executable, "-m", "magnetar.cli.demo.consumer", url, topic, name, str(self.file)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )

    def wait_ready(self) -> None:
        """Until it has subscribed. Raises CommandError when it could not."""
        assert self._process.stdout is not None
        if self._process.stdout.readline().strip() != "ready":
            raise CommandError(f"{self.name} could not subscribe")

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    @property
    def count(self) -> int:
        """Messages it has written down."""
        return records.count(self.file)

    def kill(self) -> None:
        """As `kill -9` does: no goodbye to the server, no last acknowledgement."""
        self.killed = True
        self._process.kill()

    def tell_to_stop(self) -> None:
        if self._process.stdin is not None and not self._process.stdin.closed:
            self._process.stdin.close()

    def wait_stopped(self) -> None:
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


class Consumers:
    """All of them, in the order in which they joined; none outlives the `with` block."""

    def __init__(self, url: str, topic: str, folder: Path) -> None:
        self.all: list[Consumer] = []
        self._where = (url, topic, folder)

    def __enter__(self) -> Consumers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def add(self, number: int = 1) -> None:
        """Start `number` more; returns when they have subscribed."""
        added = [Consumer(f"consumer-{len(self.all) + 1 + more}", *self._where) for more in range(number)]
        self.all += added
        for consumer in added:
            consumer.wait_ready()

    @property
    def count(self) -> int:
        """Messages written down by all, repeats included."""
        return sum(consumer.count for consumer in self.all)

    def logs(self) -> list[Log]:
        return [Log(consumer.name, consumer.killed, records.read(consumer.file)) for consumer in self.all]

    def died(self) -> list[str]:
        """Names of those that ended although nobody asked."""
        return [consumer.name for consumer in self.all if not consumer.alive and not consumer.killed]

    def stop(self) -> None:
        for consumer in self.all:
            consumer.tell_to_stop()
        for consumer in self.all:
            consumer.wait_stopped()
