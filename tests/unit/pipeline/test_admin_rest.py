"""The pipelines' admin calls: redirects to the broker that has the topic, with the token; refusals as errors."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from magnetar.pipeline.connect.admin_rest import AdminRest
from magnetar.pipeline.connect.errors import AdminRequestError
from magnetar.pipeline.connect.options import Connection

TOKEN = "secret"


class Broker(BaseHTTPRequestHandler):
    """One address leads on to the other name of the same server, which answers whoever shows the token."""

    def answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", "0")))
        port = self.server.server_address[1]
        if self.headers["Host"].startswith("127.0.0.1"):
            self.send_response(307)
            self.send_header("Location", f"http://localhost:{port}{self.path}")
            body = b""
        elif self.headers["Authorization"] != f"Bearer {TOKEN}":
            self.send_response(401)
            body = b'{"reason": "show a token"}'
        else:
            self.send_response(200)
            body = b'{"deduplicationStatus": "Enabled"}' if self.path.endswith("stats") else b""
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = answer

    def log_message(self, format: str, *arguments: object) -> None:
        """Not a word."""


@pytest.fixture
def url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Broker)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def rest(url: str, token: str) -> AdminRest:
    return AdminRest(
        Connection(service_url="pulsar://x:1", admin_url=url, auth_plugin="token", auth_params=f"token:{token}")
    )


def test_redirects_are_followed_with_the_token(url: str) -> None:
    assert rest(url, TOKEN).deduplicates("persistent://a/b/c")
    rest(url, TOKEN).set_deduplication("persistent://a/b/c")


def test_refusals_and_absence(url: str) -> None:
    with pytest.raises(AdminRequestError, match=r"HTTP 401 .*show a token.*; check admin\.url and rights"):
        rest(url, "other").deduplicates("persistent://a/b/c")
    with pytest.raises(AdminRequestError, match=r"refuses connections.*; check admin\.url"):
        rest("http://127.0.0.1:1", TOKEN).deduplicates("persistent://a/b/c")
