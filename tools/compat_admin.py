"""The commands of Apache's pulsar-admin, given to this server and to an Apache Pulsar: what they print must be alike.

    make compat-all ARGS=pulsar-admin
    python tools/compat_admin.py [--only TEXT]      the differences themselves; nothing is written

The tool and the broker are Apache's jars, which tests/compat/admin/fetch-jars takes from Maven Central once; a Java and `mvn` are needed.
`tests/compat/admin/commands.py` is the list of commands. Both servers start empty and get the same commands in the same order.
Compared are whether a command succeeds, the HTTP status with which it is refused, and what it prints, as JSON where it is JSON; not the
words of an error. What no two servers share (ids of ledgers, times, addresses, rates, names of machines) is replaced first.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import pulsar  # noqa: E402
from pulsar.schema import JsonSchema, Record, String  # noqa: E402
from tests.compat.admin.commands import commands  # noqa: E402

import compat  # noqa: E402
from magnetar.base.ports import free_ports  # noqa: E402

PLACE = ROOT / "tests" / "compat" / "admin"
START_S = 180.0
"""Time for a server to be ready; Apache's takes half a minute on a machine that does nothing else."""

SETTLE_S = 3.0
"""So long may a command that only looks give another answer than the other server's: policies of topics arrive there by a topic."""

# The last three as they are here without being said, which `magnetar config explain` gives the reasons for.
SETTINGS = {
    "bindAddress": "127.0.0.1",
    "advertisedAddress": "127.0.0.1",
    "clusterName": "standalone",
    "managedLedgerDefaultEnsembleSize": 1,
    "managedLedgerDefaultWriteQuorum": 1,
    "managedLedgerDefaultAckQuorum": 1,
    "loadBalancerEnabled": "false",
    "allowLoopback": "true",
    "nettyMaxFrameSizeBytes": 5253120,
    "transactionCoordinatorEnabled": "true",
    "brokerDeleteInactiveTopicsEnabled": "false",
    "forceDeleteNamespaceAllowed": "true",
    "forceDeleteTenantAllowed": "true",
}
OPENED = (
    "java.base/java.lang",
    "java.base/java.nio",
    "java.base/jdk.internal.misc",
    "java.base/sun.net",
    "java.management/sun.management",
    "jdk.management/com.sun.management.internal",
)


class Answer(NamedTuple):
    """`status`: HTTP, 0 when the command was not refused by the server."""

    code: int
    status: int
    printed: Any
    error: str

    @property
    def compared(self) -> tuple[int, int, Any]:
        return self.code, self.status, self.printed


class Server:
    """One of the two, with a pulsar-admin that asks it and an official client."""

    def __init__(self, name: str, port: int, http_port: int, jars: Path, scratch: Path) -> None:
        self.name = name
        self.url = f"http://127.0.0.1:{http_port}"
        self.client = pulsar.Client(
            f"pulsar://127.0.0.1:{port}", logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/null")
        )
        command = ["java", "-Xmx300m", "-cp", f"{jars}/*", str(PLACE / "Admin.java"), self.url]
        with (scratch / f"{name}-admin.log").open("w") as log:
            self._admin = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )
        assert self._admin.stdout is not None
        while (line := self._admin.stdout.readline()).strip() != "ready":
            if not line:
                raise SystemExit((scratch / f"{name}-admin.log").read_text()[-4000:])
        self.ids: list[pulsar.MessageId] = []
        self._kept: list[Any] = []

    def ask(self, words: list[str]) -> Answer:
        assert self._admin.stdin is not None
        assert self._admin.stdout is not None
        self._admin.stdin.write(json.dumps(words) + "\n")
        self._admin.stdin.flush()
        while not (line := self._admin.stdout.readline()).startswith("{"):
            if not line:
                raise SystemExit(f"pulsar-admin of {self.name} has ended")
        found = json.loads(line)
        return Answer(found["code"], found["status"], plain(found["out"], self.name), found["error"].strip())

    def act(self, words: list[str]) -> None:
        """What the official client does: see the list of commands."""
        what, topic = words
        if what == "!produce":
            producer = self.client.create_producer(topic, producer_name="p")
            self.ids = [
                producer.send(f"message {number}".encode(), properties={"n": str(number)}) for number in range(6)
            ]
            producer.close()
        elif what == "!schema":
            producer = self.client.create_producer(topic, schema=JsonSchema(Named))
            producer.send(Named(name="x"))
            producer.close()
        elif what == "!consume":
            consumer = self.client.subscribe(topic, "s", pulsar.ConsumerType.Shared, consumer_name="c")
            self._kept.append(consumer)
        else:
            raise ValueError(what)

    def filled(self, text: str, names: dict[str, str]) -> str:
        for name, value in names.items():
            text = text.replace(f"{{{name}}}", value)
        text = text.replace("{ledger}", str(self.ids[0].ledger_id()) if self.ids else "0")
        return re.sub(r"\{id:(\d+)\}", lambda found: self._id(int(found[1])), text)

    def _id(self, number: int) -> str:
        return f"{self.ids[number].ledger_id()}:{self.ids[number].entry_id()}"

    def close(self) -> None:
        self.client.close()
        self._admin.kill()  # its threads would wait for connections that nobody closes
        self._admin.wait()


class Named(Record):  # type: ignore[misc]
    name = String()


# ---- What is compared


TIMES = re.compile(r"time|date|since|created|timestamp|LastActive|lastUpdate|ageSeconds", re.IGNORECASE)
VARYING = re.compile(
    r"[rR]ate(In|Out|Redeliver)$|hroughput(In|Out)$|^averageMsgSize$|^usage$|^limit$|^maxResourceUsage$|AgeSeconds$|^recover|msgRateExpired|^cursorLedger"
)

"""Numbers that depend on when one asks, or on the machine."""

SOMETIMES = "oldestBacklogMessageSubscriptionName"
"""There once a minute's check of the backlog has run, here at once."""

LEDGERS = re.compile(r"ledgerId$|^ledger$|currentLedger|cursorLedger$|entryIdOf", re.IGNORECASE)
VARIES = re.compile(
    r"version$|^address$|^clientVersion$|connectedSince$|producerName$|ownerBroker|VersionString$|^bookieId$"
)
DOES = tuple(
    [
        "set-",
        "remove-",
        "create",
        "delete",
        "update",
        "grant",
        "revoke",
        "clear",
        "unsubscribe",
        "split",
        "unload",
        "skip",
        "reset",
        "expire",
        "terminate",
        "partitioned-terminate",
        "compact",
        "truncate",
        "trim",
        "upload",
        "scale",
        "backlog-quota-check",
        "abort",
    ]
)
"""How commands begin that change something: they are given once."""


def plain(out: str, server: str) -> Any:
    """What was printed, without what differs between any two servers."""
    try:
        return walked("", json.loads(out))
    except ValueError:
        return sorted(text(line) for line in out.splitlines() if line.strip())


def walked(key: str, value: Any) -> Any:
    if isinstance(value, dict):
        return {text(name): walked(name, each) for name, each in value.items() if name != SOMETIMES}
    if isinstance(value, list):
        items = [walked(key, each) for each in value]
        return sorted(items, key=json.dumps)
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int | float):
        if TIMES.search(key) and value > 1e9:
            return "<time>"
        if VARYING.search(key):
            return "<number>"
        if LEDGERS.search(key) and value >= 0:
            return "<ledger>"
        return float(value)
    if VARIES.search(key) and value:
        return f"<{key}>"
    return text(value)


def text(value: str) -> str:
    value = re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-]\d\d:?\d\d)?|\w{3} \w{3} \d+ [\d:]+ \w+ \d{4}", "<time>", value)
    value = re.sub(r"\b1[6-9]\d{11}\b", "<time>", value)
    value = re.sub(r"(?:127\.0\.0\.1|localhost):\d+", "<address>", value)
    value = re.sub(r"\[[\w, ]+\]", lambda found: f"[{', '.join(sorted(found[0][1:-1].split(', ')))}]", value)
    return re.sub(r"\b\d+:(-?\d+)(?::-?\d+)?\b", r"<ledger>:\1", value)


def outcome(
    command: str, key: str, servers: list[Server], names: dict[str, str]
) -> tuple[compat.Outcome, list[Answer]]:
    asked = [server.filled(command, names).split() for server in servers]
    asked = [[word if word != '""' else "" for word in words] for words in asked]
    answers = [server.ask(words) for server, words in zip(servers, asked, strict=True)]
    until_s = time.monotonic() + SETTLE_S
    looks = not command.split()[1].startswith(DOES)
    while looks and answers[0].compared != answers[1].compared and time.monotonic() < until_s:
        time.sleep(0.3)
        answers = [server.ask(words) for server, words in zip(servers, asked, strict=True)]
    alike = answers[0].compared == answers[1].compared
    return compat.Outcome(key, "passed" if alike else "failed", "" if alike else difference(*answers)), answers


def difference(ours: Answer, theirs: Answer) -> str:
    if (ours.code, ours.status) != (theirs.code, theirs.status):
        return f"{said(ours)} here, {said(theirs)} there"
    return "; ".join(parts("", ours.printed, theirs.printed))[:1500]


def said(answer: Answer) -> str:
    return (
        f"{answer.status or 'error'} ({answer.error[:200]})"
        if answer.code
        else f"success {json.dumps(answer.printed)[:200]}"
    )


def parts(where: str, ours: Any, theirs: Any) -> Iterator[str]:
    """Only what differs, by its path."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for name in sorted({*ours, *theirs}):
            if name not in theirs:
                yield f"{where}/{name} only here: {json.dumps(ours[name])[:150]}"
            elif name not in ours:
                yield f"{where}/{name} only there: {json.dumps(theirs[name])[:150]}"
            else:
                yield from parts(f"{where}/{name}", ours[name], theirs[name])
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for number, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
            yield from parts(f"{where}/{number}", mine, other)
    elif ours != theirs:
        yield f"{where or '/'}: {json.dumps(ours)[:300]} here, {json.dumps(theirs)[:300]} there"


# ---- The two servers


def jars() -> Path:
    """Fetched once."""
    place = Path(os.environ.get("COMPAT_CACHE", Path.home() / ".cache" / "magnetar-compat")) / "pulsar-admin"
    if not (place / "broker").is_dir():
        subprocess.run([str(PLACE / "fetch-jars"), str(place)], check=True)
    return place


@contextmanager
def started(name: str, command: list[str], http_port: int, scratch: Path) -> Iterator[None]:
    log = scratch / f"{name}.log"
    with log.open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, cwd=scratch)
    try:
        until_s = time.monotonic() + START_S
        while not answers(f"http://127.0.0.1:{http_port}/admin/v2/persistent/public/default"):
            if process.poll() is not None or time.monotonic() > until_s:
                raise SystemExit(f"{name} did not start\n{log.read_text()[-4000:]}")
            time.sleep(0.2)
        yield
    finally:
        process.terminate()
        process.wait(60)


def answers(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=5).close()
    except (urllib.error.URLError, OSError):
        return False
    return True


@contextmanager
def both(scratch: Path) -> Iterator[list[Server]]:
    place = jars()
    ours, ours_http, theirs, theirs_http = free_ports(4)
    settings = SETTINGS | {"brokerServicePort": theirs, "webServicePort": theirs_http}
    (scratch / "standalone.conf").write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    pulsars = ["java", "-Xmx700m", *(f"--add-opens={package}=ALL-UNNAMED" for package in OPENED)]
    pulsars += ["-Dio.netty.tryReflectionSetAccessible=true", "-cp", f"{place / 'broker'}/*"]
    pulsars += ["org.apache.pulsar.PulsarStandaloneStarter", "--config", str(scratch / "standalone.conf")]
    pulsars += ["--metadata-dir", str(scratch / "metadata"), "--bookkeeper-dir", str(scratch / "bookkeeper")]
    pulsars += ["--no-stream-storage", "--no-functions-worker"]
    magnetars = [sys.executable, "-m", "magnetar", "standalone", "--data-dir", str(scratch / "data")]
    magnetars += ["--port", str(ours), "--http-port", str(ours_http)]
    with ExitStack() as stack:
        stack.enter_context(started("pulsar", pulsars, theirs_http, scratch))
        stack.enter_context(started("magnetar", magnetars, ours_http, scratch))
        servers = []
        for name, port, http_port in (("magnetar", ours, ours_http), ("pulsar", theirs, theirs_http)):
            servers.append(Server(name, port, http_port, place / "tool", scratch))
            stack.callback(servers[-1].close)
        yield servers


SCHEMAS = {
    "avro": {
        "type": "AVRO",
        "schema": '{"type":"record","name":"R","fields":[{"name":"a","type":"int"}]}',
        "properties": {},
    },
    "string": {"type": "STRING", "schema": "", "properties": {}},
}


def compared(scratch: Path) -> Iterator[tuple[compat.Outcome, list[Answer]]]:
    """Each command's outcome, and both answers."""
    names = {"tenant": "public", "ns": "public/compared"}
    names |= {each: f"persistent://public/compared/{each}" for each in ("t", "p", "n", "s", "c", "k", "x")}
    for name, document in SCHEMAS.items():
        (scratch / f"{name}.json").write_text(json.dumps(document))
        names[name] = str(scratch / f"{name}.json")
    seen: dict[str, int] = {}
    with both(scratch) as servers:
        for command in commands():
            if command.startswith("!"):
                for server in servers:
                    server.act(server.filled(command, names).split())
                continue
            seen[command] = seen.get(command, 0) + 1
            key = command if seen[command] == 1 else f"{command} #{seen[command]}"
            yield outcome(command, key, servers, names)


def pulsar_admin(scratch: Path) -> list[compat.Outcome]:
    return [each for each, _ in compared(scratch)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="show commands that contain this")
    parser.add_argument("--all", action="store_true", help="show those that are alike as well")
    arguments = parser.parse_args()
    alike = total = 0
    with tempfile.TemporaryDirectory(prefix="magnetar-admin-") as scratch:
        for each, both_answers in compared(Path(scratch)):
            total += 1
            alike += each.outcome == "passed"
            if arguments.only in each.test and (arguments.all or each.outcome != "passed"):
                print(f"{each.test}\n    {each.why or said(both_answers[0])}", flush=True)
    print(f"{alike} of {total} alike")
    return 0


if __name__ == "__main__":
    sys.exit(main())
