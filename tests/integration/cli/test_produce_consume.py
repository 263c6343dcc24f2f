"""`magnetar produce` and `magnetar consume` against a real server."""

from __future__ import annotations

import base64
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.integration.cli.conftest import Shell


def consumed(shell: Shell, topic: str, count: int, *options: str) -> list[dict[str, Any]]:
    args = ("consume", topic, "-s", "reader", "-p", "Earliest", "-n", str(count), "--json", "-w", "20", *options)
    return [json.loads(line) for line in shell.run(*args).splitlines()]


def test_text_split_repeated_and_in_order(shell: Shell) -> None:
    assert "6 messages stored" in shell.run("produce", "plain", "-m", "a,b,c", "-n", "2")
    messages = consumed(shell, "plain", 6)
    assert [message["data"] for message in messages] == ["a", "b", "c", "a", "b", "c"]
    assert messages[0]["topic"] == "persistent://public/default/plain"


@pytest.mark.parametrize("batching", [(), ("-db",)], ids=["inside-a-batch", "one-by-one"])
def test_what_was_printed_is_acknowledged_and_the_rest_comes_next(shell: Shell, batching: tuple[str, ...]) -> None:
    topic = f"rest{''.join(batching)}"
    shell.run("produce", topic, "-m", "1,2,3,4", *batching)
    assert [message["data"] for message in consumed(shell, topic, 2)] == ["1", "2"]
    assert [message["data"] for message in consumed(shell, topic, 2)] == ["3", "4"]


def test_key_properties_and_an_unsplit_message(shell: Shell) -> None:
    shell.run("produce", "dressed", "-m", "a,b", "-s", "", "-k", "k1", "-p", "x=1,y=2", "-p", "z=3")
    (message,) = consumed(shell, "dressed", 1, "-t", "Key_Shared")
    assert (message["data"], message["key"], message["properties"]) == ("a,b", "k1", {"x": "1", "y": "2", "z": "3"})


@pytest.mark.parametrize("compression", ["NONE", "LZ4", "ZLib", "ZSTD", "SNAPPY"])
def test_every_compression(shell: Shell, compression: str) -> None:
    shell.run("produce", f"packed-{compression}", "-m", "x" * 5000, "--compression", compression)
    assert consumed(shell, f"packed-{compression}", 1)[0]["data"] == "x" * 5000


def test_bytes_from_files_and_stdin(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"\xff\x00\xfe")
    shell.run("produce", "bytes", "-f", str(tmp_path / "a.bin"), "-f", "-", stdin=b"from stdin")
    first, second = consumed(shell, "bytes", 2)
    assert base64.b64decode(first["data_base64"]) == b"\xff\x00\xfe"
    assert second["data"] == "from stdin"


def test_a_message_above_the_limit_needs_chunking(shell: Shell, tmp_path: Path) -> None:
    payload = os.urandom(6 * 1024 * 1024)
    (tmp_path / "large").write_bytes(payload)
    error = shell.run("produce", "large", "-f", str(tmp_path / "large"), code=1)
    assert error.startswith("magnetar: ")
    assert error.count("\n") == 1
    shell.run("produce", "large", "-f", str(tmp_path / "large"), "--chunking")
    assert base64.b64decode(consumed(shell, "large", 1)[0]["data_base64"]) == payload


def test_json_report_and_rate(shell: Shell) -> None:
    report = json.loads(shell.run("produce", "paced", "-m", "x", "-n", "11", "-r", "20", "--json"))
    assert (report["stored"], report["failed"]) == (11, 0)
    assert report["seconds"] >= 0.5


def test_for_people_a_message_is_a_block(shell: Shell) -> None:
    shell.run("produce", "shown", "-m", "hello", "-k", "k")
    text = shell.run("consume", "shown", "-s", "s", "-p", "Earliest")
    assert text.startswith("----- got message -----\nid:")
    assert "key:[k], properties:[], content:hello" in text


def test_waiting_ends_without_messages(shell: Shell) -> None:
    assert shell.run("consume", "silent", "-s", "s", "-n", "0", "-w", "0.3") == ""


def test_a_regular_expression_over_topics(shell: Shell) -> None:
    for name in ("wide-1", "wide-2"):
        shell.run("produce", name, "-m", name)
    messages = consumed(shell, "persistent://public/default/wide-.*", 2, "--regex")
    assert sorted(message["data"] for message in messages) == ["wide-1", "wide-2"]


def test_ctrl_c_closes_cleanly_and_hands_the_rest_back(shell: Shell) -> None:
    shell.run("produce", "endless", "-m", "a,b", "-db")
    process = shell.start("consume", "endless", "-s", "s", "-p", "Earliest", "-n", "0", "--json", "-q", "1")
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["data"] == "a"
    assert json.loads(process.stdout.readline())["data"] == "b"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors.strip()) == (130, "")
    shell.run("produce", "endless", "-m", "c")
    line = shell.run("consume", "endless", "-s", "s", "-n", "1", "--json", "-w", "20")
    assert json.loads(line)["data"] == "c"
