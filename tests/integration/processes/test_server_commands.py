"""The commands that serve: what they refuse, and how they end."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from magnetar.cli.main import run


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["bookie"], "metadataServiceUri is not set: which metadata store? Say --metadata-url zk:HOST:PORT"),
        (["broker"], "metadataStoreUrl is not set: which metadata store? Say --metadata-url zk:HOST:PORT"),
        (["autorecovery"], "metadataServiceUri is not set"),
        (["bookie", "--metadata-url", "zk:127.0.0.1:1", "--bind-address", "0.0.0.0"], "pass --insecure-listen"),
        (["bookie", "--metadata-url", "nonsense", "--port", "0", "--http-port", "-1"], "'nonsense' is not understood"),
        (["bookie", "--metadata-url", "zk:h:1", "--set", "bookiPort=1"], "the nearest is 'bookiePort'"),
        (["metadata-server", "--data-dir", "/proc/none", "--port", "0"], "cannot create the data directory /proc/none"),
        (["metadata-server", "--set", "minSessionTimeout=70000"], "minSessionTimeout <= maxSessionTimeout must hold"),
    ],
)
def test_one_line_that_names_the_fix(
    words: list[str], text: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(words) == 1
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("magnetar: ")]
    assert text in line


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_metadata_server_says_that_it_is_ready_and_closes_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-m", "magnetar", "metadata-server", "--data-dir", str(tmp_path / "m"), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("magnetar ready zk:127.0.0.1:")
        process.send_signal(number)
        assert process.wait(30) == 0
