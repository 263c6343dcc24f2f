"""A wrong address, protocol or certificate is named as what it is, within seconds, and nothing binary reaches the terminal."""

from __future__ import annotations

import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from magnetar.base.ports import free_ports
from magnetar.client.blocking_http import unreachable
from magnetar.testing.server import ServerProcess
from tests.support.certificates import Authority

COMMAND_S = 25
"""Less than the client library's own operation timeout: the reason is known at once."""


class Harness:
    """A server with all four ports, and an address where somebody accepts and says nothing."""

    def __init__(self, directory: Path) -> None:
        authority = Authority(directory)
        certificate, key = authority.sign("server")
        tls_port, https_port = free_ports(2)
        self.settings = {
            "brokerServicePortTls": tls_port,
            "webServicePortTls": https_port,
            "tlsCertificateFilePath": certificate,
            "tlsKeyFilePath": key,
        }
        self.server = ServerProcess(directory / "data", self.settings).start()
        self.silent = socket.create_server(("127.0.0.1", 0))
        self.places = {
            "binary": f"127.0.0.1:{self.server.port}",
            "http": f"127.0.0.1:{self.server.http_port}",
            "tls": f"localhost:{tls_port}",
            "https": f"localhost:{https_port}",
            "nobody": "127.0.0.1:1",
            "unknown": "no-such-host.invalid:1",
        }


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    harness = Harness(tmp_path_factory.mktemp("unreachable"))
    yield harness
    harness.server.close()
    harness.silent.close()


def command(*words: str) -> str:
    started_s = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "magnetar", *words], capture_output=True, timeout=COMMAND_S, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 1, done
    assert time.monotonic() - started_s < COMMAND_S
    text = done.stderr.decode()
    assert text.strip().isprintable(), "one line, and nothing for a terminal to interpret"
    return text


CASES = [
    ("http", "binary", "not by HTTP; use the admin API's port"),
    ("http", "https", "use https:// if it speaks TLS"),
    ("http", "tls", "use https:// if it speaks TLS"),
    ("http", "nobody", "refuses connections; start a server there"),
    ("http", "unknown", "host name of"),
    ("https", "http", "answers, but not by TLS"),
    ("https", "binary", "answers, but not by TLS"),
    ("https", "https", "pass --tls-trust-certs FILE with the authority to trust"),
    ("pulsar", "http", "answers, but by HTTP; use the broker's port"),
    ("pulsar", "tls", "does it speak TLS"),
    ("pulsar", "nobody", "refuses connections; start a server there"),
    ("pulsar", "unknown", "host name of"),
    ("pulsar+ssl", "binary", "answers, but not by TLS"),
    ("pulsar+ssl", "http", "answers, but not by TLS"),
    ("pulsar+ssl", "tls", "pass --tls-trust-certs FILE with the authority to trust"),
]


@pytest.mark.parametrize(("scheme", "place", "said"), CASES)
def test_the_reason_is_named(harness: Harness, scheme: str, place: str, said: str) -> None:
    url = f"{scheme}://{harness.places[place]}"
    if scheme.startswith("http"):
        text = command("topics", "list", "public/default", "--admin-url", url)
    else:
        text = command("produce", "topic", "-m", "x", "--url", url)
        assert said in command("consume", "topic", "-s", "sub", "-n", "1", "--url", url)
    assert said in text
    if place not in ("nobody",):
        assert "start a server there" not in text


def test_a_certificate_for_another_name_is_no_absent_server() -> None:
    error = ssl.SSLCertVerificationError(1, "certificate verify failed")
    error.verify_message = "Hostname mismatch, certificate is not valid for 'a'."
    assert "use a host name that the certificate lists" in unreachable("https://a:1", error)


def test_the_probe_is_quiet_in_the_log_of_the_server(harness: Harness) -> None:
    before = len(harness.server.log())
    done = subprocess.run(
        [sys.executable, "-m", "magnetar", "produce", "t", "-m", "x", "--url", f"pulsar://{harness.places['binary']}"],
        capture_output=True,
        timeout=COMMAND_S,
    )
    assert done.returncode == 0, done.stderr
    lines = harness.server.log()[before:].splitlines()
    assert not [line for line in lines if " INFO " not in line]
