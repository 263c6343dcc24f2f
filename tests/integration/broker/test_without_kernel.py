"""What the compiled functions have a part in passes without them, too: the same tests once more, in Python alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pulsar
import pytest

from magnetar.testing.server import ServerProcess
from magnetar.wire.pulsar.kernel import SWITCH, kernel

ROOT = Path(__file__).parents[3]

CONCERNED = (
    "tests/integration/broker/test_calls_per_entry.py",
    "tests/property/bookkeeper/test_bookie_server_properties.py",
    "tests/property/broker/test_run_properties.py",
    "tests/property/broker/test_subscription_properties.py",
    "tests/unit/broker/test_key_shared_dispatch.py",
    "tests/unit/bookkeeper/test_entry_format.py",
    "tests/unit/broker/test_single_active.py",
)


@pytest.mark.timeout(300)
@pytest.mark.skipif(not kernel, reason="this whole run is without the compiled functions")
def test_the_message_path_in_python_alone() -> None:
    command = [sys.executable, "-m", "pytest", "-n", "0", "-q", "-p", "no:cacheprovider", *CONCERNED]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    made = subprocess.run(command, cwd=ROOT, env=environment | {SWITCH: "off"}, capture_output=True, text=True)
    assert made.returncode == 0, made.stdout[-5000:]
    assert "skipped" not in made.stdout.splitlines()[-1]


@pytest.mark.parametrize("switch", ["on", "off"])
def test_the_official_client_on_a_server_with_and_without_them(tmp_path: Path, switch: str) -> None:
    server = ServerProcess(tmp_path / "data", environment={SWITCH: switch}).start()
    try:
        client = pulsar.Client(server.service_url)
        consumer = client.subscribe("topic", "subscription")
        producer = client.create_producer("topic", batching_enabled=True, batching_max_messages=10)
        for number in range(200):
            producer.send_async(str(number).encode(), None, properties={"number": "zw\u00f6lf"}, partition_key="key")
        producer.flush()
        for number in range(200):
            message = consumer.receive(timeout_millis=20_000)
            assert message.data() == str(number).encode()
            consumer.acknowledge(message)
        client.close()
    finally:
        server.close()
