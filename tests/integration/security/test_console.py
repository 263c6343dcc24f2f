"""The console with authentication: login, forged forms, and that each role sees what its rights say and nothing else."""

from __future__ import annotations

import base64
import re

import pytest
import requests

from magnetar.admin.console.pages import all_pages
from tests.integration.security.conftest import PASSWORD, Secured
from tests.support.tokens import token

pytestmark = pytest.mark.usefixtures("known")

NAMES = {"tenant": "t", "namespace": "ns", "topic": "one", "domain": "persistent", "subscription": "sub"}


@pytest.fixture(scope="module")
def known(secured: Secured) -> None:
    secured.admin("PUT", "persistent/t/ns/one")
    secured.admin("PUT", "persistent/t/ns/one/subscription/sub")


class Browser:
    """One with cookies, at the HTTPS port, where they are kept for secure connections only."""

    def __init__(self, secured: Secured) -> None:
        self.base = f"https://localhost:{secured.http_port_tls}"
        self.session = requests.Session()
        self.session.trust_env = False  # else a variable names other authorities
        self.session.verify = str(secured.authority.file)

    def get(self, path: str, **options: object) -> requests.Response:
        return self.session.get(f"{self.base}{path}", timeout=60, **options)  # type: ignore[arg-type]

    def post(self, path: str, fields: dict[str, str], **options: object) -> requests.Response:
        return self.session.post(f"{self.base}{path}", fields, timeout=60, allow_redirects=False, **options)  # type: ignore[arg-type]

    def form_token(self, path: str = "/console/login") -> str:
        found = re.search(r'name="form_token" value="(\w+)"', self.get(path).text)
        assert found is not None
        return found[1]

    def log_in(self, role: str) -> Browser:
        response = self.post("/console/login", {"token": token(role), "form_token": self.form_token()})
        assert response.status_code == 303, response.text
        return self


@pytest.fixture
def browser(secured: Secured) -> Browser:
    return Browser(secured)


def test_login(browser: Browser) -> None:
    first = browser.get("/console/login?next=%2Fconsole%2Ftenants%2Ft")
    assert "Log in" in first.text
    fields = {"token": f"  {token('root')}\n", "form_token": browser.form_token()}
    response = browser.post("/console/login?next=%2Fconsole%2Ftenants%2Ft", fields)
    assert response.headers["Location"] == "/console/tenants/t"
    cookie = response.headers["Set-Cookie"]
    for wanted in ("HttpOnly", "SameSite=strict", "Secure", "Path=/console"):
        assert wanted in cookie
    assert "Max-Age" not in cookie
    assert "expires" not in cookie
    page = browser.get("/console/")
    assert page.status_code == 200
    assert "root" in page.text
    for secret in (token("root"), base64.b64encode(token("root").encode()).decode()):
        assert secret not in page.text


def test_log_out(browser: Browser) -> None:
    browser.log_in("tenant-admin")
    assert browser.get("/console/tenants/t").status_code == 200
    assert browser.post("/console/logout", {"form_token": browser.form_token("/console/")}).status_code == 303
    assert browser.get("/console/tenants/t").status_code == 403  # anonymous now, as this server allows it
    assert browser.get("/console/logout").status_code == 405


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"token": ""}, "enter a token"),
        ({"token": "no.such.token"}, "token"),
        ({"token": token("root", secret=b"x" * 32)}, "token"),
        ({"token": token("root", lifetime_s=-1)}, "expired"),
        ({"token": "x" * 5000}, "longer than"),
        ({"token": "a\r\nSet-Cookie: b"}, "letters"),
        ({"user": "admin", "password": "wrong"}, ""),
    ],
)
def test_a_wrong_credential_is_refused(browser: Browser, fields: dict[str, str], reason: str) -> None:
    response = browser.post("/console/login", fields | {"form_token": browser.form_token()})
    assert response.status_code == 401
    assert reason in response.text
    assert "magnetar_credential" not in browser.session.cookies


def test_name_and_password(browser: Browser) -> None:
    fields = {"user": "admin", "password": PASSWORD, "form_token": browser.form_token()}
    assert browser.post("/console/login", fields).status_code == 303
    assert browser.get("/console/").status_code == 200


@pytest.mark.parametrize(
    "target",
    ["https://evil.example/", "//evil.example/", "/console/\\evil", "/admin", "javascript:alert(1)", "/console/\n"],
)
def test_a_login_leads_to_the_console_only(browser: Browser, target: str) -> None:
    fields = {"token": token("root"), "form_token": browser.form_token()}
    response = browser.session.post(
        f"{browser.base}/console/login", fields, params={"next": target}, timeout=60, allow_redirects=False
    )
    assert response.headers["Location"] == "/console/"


def test_forged_forms_are_refused(browser: Browser, secured: Secured) -> None:
    browser.log_in("root")
    own = browser.form_token("/console/")
    other = Browser(secured).log_in("root").form_token("/console/")
    before_login = Browser(secured).form_token()
    for forged in ("", "x", own[:-1], other, before_login, "é"):
        assert browser.post("/console/logout", {"form_token": forged}).status_code == 403
    headers = {"Origin": "https://evil.example"}
    assert browser.post("/console/logout", {"form_token": own}, headers=headers).status_code == 403
    assert (
        requests.post(
            f"{browser.base}/console/logout", {"form_token": own}, timeout=60, verify=str(secured.authority.file)
        ).status_code
        == 403
    )  # without the cookies
    assert browser.post("/console/logout", {"form_token": own}).status_code == 303


def test_a_large_form_is_refused(browser: Browser) -> None:
    headers = {"Content-Length": "2000000"}  # announced, and not sent: the answer does not wait for it
    assert browser.session.post(f"{browser.base}/console/login", headers=headers, timeout=60).status_code == 413


def test_a_form_of_too_many_fields_is_refused(browser: Browser) -> None:
    assert browser.post("/console/login", {f"f{number}": "x" for number in range(300)}).status_code == 400


@pytest.mark.parametrize("role", ["stranger", "other-admin", "anonymous"])
def test_strangers_see_nothing_of_a_tenant(secured: Secured, role: str) -> None:
    """No page below the tenant, whether it exists or not, and no word of what is there."""
    for route in all_pages():
        if "{tenant}" not in route.path:
            continue
        path = route.path
        for name, value in NAMES.items():
            path = path.replace(f"{{{name}}}", value)
        if route.method == "GET":
            response = secured.http("GET", path, role)
            assert response.status_code == 403, path
            nothing = secured.http("GET", path.replace("/t/", "/nothing/"), role)
            assert nothing.status_code == 403, path


def test_what_a_role_may_see(secured: Secured) -> None:
    """The frame is for everybody who is known; the parts are asked for with the reader's own rights."""
    for role, path, status in (
        ("root", "/console/", 200),
        ("producer", "/console/", 200),
        ("tenant-admin", "/console/tenants/t", 200),
        ("producer", "/console/tenants/t", 403),
        ("producer", "/console/tenants/t/ns", 200),
        ("consumer", "/console/tenants/t/ns", 200),
        ("topic-role", "/console/tenants/t/ns", 403),
        ("topic-role", "/console/topics/persistent/t/ns/one", 200),
        ("tenant-admin", "/console/tenants/other", 403),
    ):
        assert secured.http("GET", path, role).status_code == status, (role, path)
    assert "Bookies" in secured.http("GET", "/console/", "root").text
    for role in ("tenant-admin", "producer", "stranger"):
        page = secured.http("GET", "/console/", role).text
        assert "Bookies" not in page
        assert "superuser" in page


@pytest.mark.parametrize(
    ("role", "may_publish", "may_change"),
    [("producer", True, False), ("consumer", False, True), ("topic-role", True, True), ("tenant-admin", True, True)],
)
def test_who_may_write(secured: Secured, browser: Browser, role: str, may_publish: bool, may_change: bool) -> None:
    """Forms are shown to those who may use them, and what they do is asked for again with the role's own right."""
    browser.log_in(role)
    page = "/console/topics/persistent/t/ns/one"
    messages, subscription = browser.get(f"{page}/messages").text, browser.get(f"{page}/subscriptions/sub").text
    assert ("Publish one" in messages) == may_publish
    assert ("Clear the backlog" in subscription) == may_change
    fields = {"form_token": browser.form_token(f"{page}/subscriptions/sub")}
    assert browser.post(f"{page}/messages", {**fields, "payload": "x"}).status_code == (303 if may_publish else 403)
    for confirmed in ({}, {"confirm": "yes"}):
        answer = browser.post(f"{page}/subscriptions/sub/clear", fields | confirmed)
        assert answer.status_code == ((303 if confirmed else 200) if may_change else 403)
    stranger = Browser(secured).log_in("stranger")
    token_of_stranger = {"form_token": stranger.form_token("/console/"), "payload": "x", "confirm": "yes"}
    for path in ("messages", "subscriptions/sub/clear", "subscriptions/sub/skip"):
        assert stranger.post(f"{page}/{path}", token_of_stranger).status_code == 403


def test_a_stream_ends_with_the_right_to_it(secured: Secured) -> None:
    """Live parts are asked for with the credential each time; who may not see the page gets its refusal instead."""
    headers = {"Accept": "text/event-stream"}
    with secured.http("GET", "/console/tenants/t", "stranger", headers=headers, stream=True) as response:
        lines = [line for line in response.iter_lines(decode_unicode=True) if line]
    assert lines[0] == "event: gone"
    assert "Unauthorized" in lines[1]


def test_a_server_without_an_anonymous_role_asks_for_a_login(tmp_path_factory: pytest.TempPathFactory) -> None:
    from tests.integration.security.conftest import start

    server = start(tmp_path_factory.mktemp("closed"), anonymousUserRole="")
    try:
        response = requests.get(f"{server.process.http_url}/console/tenants?x=1", timeout=60)
        assert response.url.endswith("/console/login?next=%2Fconsole%2Ftenants%3Fx%3D1")
        assert response.status_code == 200
        stream = requests.get(
            f"{server.process.http_url}/console/",
            headers={"Accept": "text/event-stream"},
            timeout=60,
            allow_redirects=False,
        )
        assert stream.status_code == 303
        bad = {"Cookie": "magnetar_credential=%%%; magnetar_browser=x"}
        assert "Log in" in requests.get(f"{server.process.http_url}/console/", headers=bad, timeout=60).text
    finally:
        server.process.close()
