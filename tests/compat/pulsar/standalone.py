"""Apache Pulsar's standalone out of its jars: how it is started, and when it is ready."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from magnetar.base.java import find_java

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


def command_of(
    jars: str, directory: Path, settings: Mapping[str, object], java_options: Sequence[str] = ()
) -> list[str]:
    """The command that runs it in `directory`, into which its settings file is written."""
    lines = [f"{key}={value}\n" for key, value in (BASE | dict(settings)).items()]
    (directory / "standalone.conf").write_text("".join(lines))
    command = [str(find_java()), *java_options, *(f"--add-opens={package}=ALL-UNNAMED" for package in OPENED)]
    command += ["-Dio.netty.tryReflectionSetAccessible=true", "-cp", f"{jars}/*"]
    command += ["org.apache.pulsar.PulsarStandaloneStarter", "--config", str(directory / "standalone.conf")]
    command += ["--metadata-dir", str(directory / "metadata"), "--bookkeeper-dir", str(directory / "bookkeeper")]
    return [*command, "--no-stream-storage", "--no-functions-worker"]


def answers(http_port: int) -> bool:
    """True once it serves."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{http_port}/admin/v2/persistent/public/default", timeout=5):
            return True
    except (urllib.error.URLError, OSError):
        return False
