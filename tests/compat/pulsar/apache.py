"""A pytest plugin: every server that tests start is Apache Pulsar's standalone, with the settings that they give to magnetar's.

    tests/compat/pulsar/fetch-jars /tmp/pulsar-jars
    PULSAR_JARS=/tmp/pulsar-jars python -m pytest -n0 -p tests.compat.pulsar.apache tests/integration/pipeline/test_streams.py

PULSAR_JARS is a directory with pulsar-broker 4.0 and its dependencies, which fetch-jars takes from Maven Central. Servers take half a
minute to start and a gigabyte each.
"""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import Any, Final

from magnetar.base.ports import free_ports
from magnetar.testing.server import LOG_TAIL_CHARS, ServerProcess, ServerStartError
from tests.compat.pulsar.standalone import answers, command_of

JARS: Final = os.environ["PULSAR_JARS"]
START_TIMEOUT_S: Final = 120.0


def spawn(server: Any) -> Any:
    """In place of `ServerProcess.spawn`."""
    directory: Path = server.data_dir
    directory.mkdir(parents=True, exist_ok=True)
    if server._ports == (0, 0):
        first, second = free_ports(2)
        server._ports = (first, second)
    settings = {"brokerServicePort": server.port, "webServicePort": server.http_port} | server.settings
    command = command_of(JARS, directory, settings, ["-Xmx1g"])
    with server.log_path.open("a") as log:
        server._process = subprocess.Popen(command, stdout=log, stderr=log, text=True, cwd=directory)
    return server


def wait_ready(server: Any) -> Any:
    """In place of `ServerProcess.wait_ready`."""
    server.service_url = f"pulsar://127.0.0.1:{server.port}"
    server.http_url = f"http://127.0.0.1:{server.http_port}"
    until_s = time.monotonic() + START_TIMEOUT_S
    while not answers(server.http_port):
        if time.monotonic() > until_s or not server.running:
            server.close()
            raise ServerStartError(f"Apache Pulsar did not start\n{server.log()[-LOG_TAIL_CHARS:]}")
        time.sleep(0.2)
    return server


setattr(ServerProcess, "spawn", spawn)  # noqa: B010  for the type checker these are others
setattr(ServerProcess, "wait_ready", wait_ready)  # noqa: B010
