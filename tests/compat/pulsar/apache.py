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
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Final

from magnetar.base.java import find_java
from magnetar.base.ports import free_ports
from magnetar.testing.server import LOG_TAIL_CHARS, ServerProcess, ServerStartError

JARS: Final = os.environ["PULSAR_JARS"]
START_TIMEOUT_S: Final = 120.0

BASE: Final = {
    "bindAddress": "127.0.0.1",
    "advertisedAddress": "127.0.0.1",
    "clusterName": "standalone",
    "managedLedgerDefaultEnsembleSize": 1,
    "managedLedgerDefaultWriteQuorum": 1,
    "managedLedgerDefaultAckQuorum": 1,
    "loadBalancerEnabled": "false",
    "allowLoopback": "true",
    "nettyMaxFrameSizeBytes": 5253120,  # as in the standalone.conf that comes with it: for the largest message with its envelope
}
OPENED: Final = (
    "java.base/java.lang",
    "java.base/java.nio",
    "java.base/jdk.internal.misc",
    "java.base/sun.net",
    "java.management/sun.management",
    "jdk.management/com.sun.management.internal",
)


def spawn(server: Any) -> Any:
    """In place of `ServerProcess.spawn`."""
    directory: Path = server.data_dir
    directory.mkdir(parents=True, exist_ok=True)
    if server._ports == (0, 0):
        first, second = free_ports(2)
        server._ports = (first, second)
    settings = BASE | {"brokerServicePort": server.port, "webServicePort": server.http_port} | server.settings
    (directory / "standalone.conf").write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    command = [str(find_java()), "-Xmx1g", *(f"--add-opens={package}=ALL-UNNAMED" for package in OPENED)]
    command += ["-Dio.netty.tryReflectionSetAccessible=true", "-cp", f"{JARS}/*"]
    command += ["org.apache.pulsar.PulsarStandaloneStarter", "--config", str(directory / "standalone.conf")]
    command += ["--metadata-dir", str(directory / "metadata"), "--bookkeeper-dir", str(directory / "bookkeeper")]
    command += ["--no-stream-storage", "--no-functions-worker"]
    with server.log_path.open("a") as log:
        server._process = subprocess.Popen(command, stdout=log, stderr=log, text=True, cwd=directory)
    return server


def wait_ready(server: Any) -> Any:
    """In place of `ServerProcess.wait_ready`."""
    server.service_url = f"pulsar://127.0.0.1:{server.port}"
    server.http_url = f"http://127.0.0.1:{server.http_port}"
    until_s = time.monotonic() + START_TIMEOUT_S
    while not _answers(f"{server.http_url}/admin/v2/persistent/public/default"):
        if time.monotonic() > until_s or not server.running:
            server.close()
            raise ServerStartError(f"Apache Pulsar did not start\n{server.log()[-LOG_TAIL_CHARS:]}")
        time.sleep(0.2)
    return server


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except (urllib.error.URLError, OSError):
        return False


setattr(ServerProcess, "spawn", spawn)  # noqa: B010  for the type checker these are others
setattr(ServerProcess, "wait_ready", wait_ready)  # noqa: B010
