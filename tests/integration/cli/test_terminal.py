"""What strangers wrote reaches a terminal as escapes, not as commands to it. Run on a real pseudo-terminal."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
from collections.abc import Callable

import pulsar
import pytest

from magnetar.base.printable import as_text, json_line, lines, one_line
from magnetar.cli.demo.server import Server
from tests.integration.cli.conftest import MAGNETAR, Shell

HOSTILE = "a\x1b]0;owned\x07b\x1b[2J\rc\nforged line\x9b31m\u202egnp.exe\u2066\x00[red]x[/red]"
"""A title, a cleared screen, an overwritten line, a line of its own, an 8-bit CSI, letters in the other direction, markup of rich."""
OWN_SEQUENCES = re.compile(r"\x1b\[[0-9;]*m")
"""Colours and weights of the tables themselves."""


def on_terminal(shell: Shell, *args: str) -> str:
    """What the command writes to a terminal, which is its stdout and stderr."""
    leader, follower = pty.openpty()
    process = subprocess.Popen([MAGNETAR, *args], env=shell.env | {"COLUMNS": "400"}, stdout=follower, stderr=follower)
    os.close(follower)
    written = b""
    while True:
        try:
            piece = os.read(leader, 65536)
        except OSError:  # the other end is closed
            break
        if not piece:
            break
        written += piece
    os.close(leader)
    process.wait(30)
    return written.decode().replace("\r\n", "\n")


def check_harmless(written: str) -> None:
    plain = OWN_SEQUENCES.sub("", written)
    for character in "\x1b\x07\r\x9b\u202e\u2066\x00":
        assert character not in plain, plain
    assert not any(line.startswith("forged line") for line in plain.splitlines()), plain


@pytest.fixture(scope="module")
def client(server: Server) -> pulsar.Client:
    client = pulsar.Client(server.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    yield client
    client.close()


@pytest.fixture
def topic(client: pulsar.Client, request: pytest.FixtureRequest) -> str:
    """With a hostile message, a hostile producer, consumer and subscription."""
    name = "terminal-" + re.sub(r"\W", "", request.node.name)
    client.subscribe(name, "mine").close()
    client.subscribe(name, "b\x9b31m\u202egnp.exe[red]x[/red]", consumer_name=HOSTILE.replace("\x00", ""))
    producer = client.create_producer(name, producer_name=HOSTILE.replace("\x00", ""))
    producer.send(HOSTILE.encode(), properties={HOSTILE: HOSTILE}, partition_key=HOSTILE)
    return name


@pytest.mark.parametrize(
    "command",
    [
        ("consume", "{topic}", "-s", "mine"),
        ("consume", "{topic}", "-s", "mine", "--json"),
        ("topics", "peek-messages", "{topic}", "-s", "mine"),
        ("topics", "peek-messages", "{topic}", "-s", "mine", "--json"),
        ("topics", "stats", "{topic}"),
        ("topics", "stats", "{topic}", "--json"),
        ("topics", "subscriptions", "{topic}"),
        ("topics", "stats-internal", "{topic}", "--json"),
        ("topics", "stats", HOSTILE.replace("\x00", "")),
    ],
    ids=lambda command: "-".join(command)[:40].encode("ascii", "ignore").decode().split("\x1b")[0],
)
def test_nothing_reaches_the_terminal_as_it_is(shell: Shell, topic: str, command: tuple[str, ...]) -> None:
    written = on_terminal(shell, *(part.format(topic=topic) if "{topic}" in part else part for part in command))
    assert written.strip()
    check_harmless(written)
    assert "Usage" not in written


def test_consume_shows_what_was_there(shell: Shell, topic: str) -> None:
    written = on_terminal(shell, "consume", topic, "-s", "mine")
    assert f"content:{one_line(HOSTILE)}" in written
    assert r"\x1b[2J\rc\nforged line\x9b31m\u202egnp.exe" in written


def test_a_pipe_gets_the_payload_as_it_is_and_names_on_one_line(shell: Shell, topic: str) -> None:
    """Bytes for the next program; but a property cannot end the line that it stands on."""
    written = subprocess.run(
        [MAGNETAR, "consume", topic, "-s", "mine"], env=shell.env, capture_output=True, timeout=60, check=True
    ).stdout
    assert written.endswith(b"content:" + HOSTILE.encode() + b"\n")
    assert written.count(b"forged line") == 4
    assert written.count(b"\nforged line") == 1


def test_json_says_exactly_what_was_sent(shell: Shell, topic: str) -> None:
    for run in (shell.run, lambda *args: on_terminal(shell, *args)):
        document = json.loads(run("consume", topic, "-s", "mine", "--json"))
        assert document["data"] == HOSTILE
        assert document["properties"] == {HOSTILE: HOSTILE}
        shell.run("topics", "reset-cursor", topic, "-s", "mine", "-t", "1h")


@pytest.mark.parametrize("function", [one_line, lines, json_line])
def test_every_character_that_controls_is_escaped(function: Callable[[str], str]) -> None:
    controls = [chr(code) for code in (*range(32), *range(127, 160), 0x2028, 0x2029, 0x202A, 0x202E, 0x2066, 0x200F)]
    kept = {"\n", "\t"} if function is lines else set()
    for control in controls:
        assert (control in function(f"a{control}b")) == (control in kept)
    assert function("Grüße 日本 𝄞 \\ [x]") == "Grüße 日本 𝄞 \\ [x]"
    assert as_text(b"\xff\n") == "\\xff\n"
