"""The pytest plugin, used as a stranger's project would use it: in a pytest of its own, with and without workers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from magnetar.testing.server import ServerProcess

PROJECT = """
def roundtrip(client, namespace):
    topic = f"persistent://{namespace}/orders"
    consumer = client.subscribe(topic, "audit")
    client.create_producer(topic).send(b"one")
    message = consumer.receive(30_000)
    consumer.acknowledge(message)
    return message.data()

def test_one(magnetar_client, magnetar_namespace):
    assert roundtrip(magnetar_client, magnetar_namespace) == b"one"

def test_another_sees_nothing_of_it(magnetar_client, magnetar_namespace):
    assert roundtrip(magnetar_client, magnetar_namespace) == b"one"

def test_session_server(magnetar):
    assert magnetar.service_url.startswith("pulsar://") and magnetar.http_url.startswith("http://")
"""


def run_project(directory: Path, *options: str) -> subprocess.CompletedProcess[str]:
    (directory / "test_orders.py").write_text(PROJECT)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(directory), *options]
    return subprocess.run([*command, str(directory)], capture_output=True, text=True, timeout=100, cwd=directory)


def test_fixtures_start_a_server_of_their_own(tmp_path: Path) -> None:
    result = run_project(tmp_path)
    assert "3 passed" in result.stdout, result.stdout + result.stderr


def test_safe_under_xdist(tmp_path: Path) -> None:
    result = run_project(tmp_path, "-n", "2")
    assert "3 passed" in result.stdout, result.stdout + result.stderr


def test_the_same_tests_against_a_given_server(tmp_path: Path, server: ServerProcess) -> None:
    result = run_project(tmp_path, "--magnetar-url", server.service_url, "--magnetar-http-url", server.http_url)
    assert "3 passed" in result.stdout, result.stdout + result.stderr


def test_settings_reach_the_server(tmp_path: Path) -> None:
    (tmp_path / "test_partitions.py").write_text(
        "def test_default(magnetar_client, magnetar_namespace):\n"
        "    topic = f'persistent://{magnetar_namespace}/auto'\n"
        "    magnetar_client.create_producer(topic)\n"
        "    assert len(magnetar_client.get_topic_partitions(topic)) == 3\n"
    )
    result = run_project(
        tmp_path,
        "--magnetar-set",
        "allowAutoTopicCreationType=partitioned",
        "--magnetar-set",
        "defaultNumPartitions=3",
        "-k",
        "test_default",
    )
    assert "1 passed" in result.stdout, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--magnetar-set", "nonsense"), "expected KEY=VALUE"),
        (("--magnetar-set", "defaultNumPartition=3"), "defaultNumPartitions"),
        (
            ("--magnetar-url", "pulsar://127.0.0.1:1", "--magnetar-http-url", "http://127.0.0.1:1"),
            "is the server running?",
        ),
    ],
)
def test_mistakes_are_explained(tmp_path: Path, options: tuple[str, ...], text: str) -> None:
    result = run_project(tmp_path, *options, "-k", "test_one")
    assert result.returncode != 0
    assert text in result.stdout + result.stderr
