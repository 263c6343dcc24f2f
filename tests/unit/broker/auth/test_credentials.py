"""Password hashes against known ones, keys in all forms, who may speak for whom, and when a credential ends."""

from __future__ import annotations

import base64
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from magnetar.base.errors import ConfigError
from magnetar.broker.auth.authenticate import Authentication, Credentials
from magnetar.broker.auth.basic import apr1, configured_basic, matches
from magnetar.broker.auth.key_material import read_key
from magnetar.broker.auth.refresh import CHALLENGE_LEAD_MS, RECHECK_MS, CredentialWatch
from magnetar.broker.auth.token import key_set
from magnetar.broker.errors import AuthenticationError
from magnetar.broker.settings.security import SecuritySettings


def test_apr1_known_hashes() -> None:
    assert apr1(b"myPassword", "r31.....") == "$apr1$r31.....$HqJZimcKQFAMYayBlzkrA/"
    assert matches(b"myPassword", "{SHA}VBPuJHI7uixaa6LQGWx4s+5GKNE=")
    assert not matches(b"mypassword", "{SHA}VBPuJHI7uixaa6LQGWx4s+5GKNE=")


@pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl here to compare with")
@pytest.mark.parametrize("password", ["123456", "a", "ä" * 20, "fifteen letters", "sixteen letters!", "x" * 100])
def test_apr1_against_openssl(password: str) -> None:
    command = ["openssl", "passwd", "-apr1", "-salt", "saltsalt", password]
    assert apr1(password.encode(), "saltsalt") == subprocess.run(command, capture_output=True, text=True).stdout.strip()


@pytest.mark.parametrize("line", ["admin:plain", "admin:$2y$05$abc", "admin:rqXexS6ZhobKA", "admin", ":$apr1$a$b"])
def test_weak_or_unknown_hashes_do_not_start(tmp_path: Path, line: str) -> None:
    file = tmp_path / "htpasswd"
    file.write_text(f"\n{line}\n")
    with pytest.raises(ConfigError, match=r"basicAuthConf:2: expected user:\$apr1\$"):
        configured_basic(str(file))


def test_keys_in_all_forms(tmp_path: Path) -> None:
    file = tmp_path / "key file"
    file.write_bytes(b"\x00\x01")
    encoded = base64.b64encode(b"\x00\x01").decode()
    for text in (str(file), file.as_uri(), f"data:;base64,{encoded}", encoded, f"{encoded}\n", "data:,%00%01"):
        assert read_key(text, "key") == b"\x00\x01"
    for text in ("file:///no/such/file", "data:;base64", "no such file", "data:;base64,???"):
        with pytest.raises(ConfigError) as problem:
            read_key(text, "key")
        assert "???" not in str(problem.value)


@pytest.mark.parametrize(
    "document",
    [
        "[]",
        "{}",
        '{"keys": []}',
        '{"keys": [{"kty": "oct", "k": "AAAA"}]}',
        '{"keys": [{"kty": "RSA"}]}',
        '{"keys": [{"kty": "RSA", "n": "AQAB", "e": "AQAB"}]}',
        '{"keys": [1]}',
        "[" * 100_000,
    ],
)
def test_unusable_key_sets(document: str) -> None:
    with pytest.raises(ConfigError, match="tokenJwksFile"):
        key_set(document.encode())


def authentication(**settings: object) -> Authentication:
    return Authentication(SecuritySettings(authentication_enabled=True, **settings), lambda: 0)  # type: ignore[arg-type]  # as given


def test_a_stranger_is_anonymous_or_nobody() -> None:
    shown = Credentials("kerberos", b"x")
    assert authentication(anonymous_user_role="guest").authenticate(shown).role == "guest"
    with pytest.raises(AuthenticationError):
        authentication().authenticate(shown)


def test_certificates_name_exactly_one_role() -> None:
    methods = authentication(authentication_providers="tls", anonymous_user_role="guest")
    end = "Jan  1 00:00:00 2099 GMT"
    names = [
        ((("commonName", "a"),),),
        ((("commonName", "a"),), (("commonName", "b"),)),
        ((("organizationName", "a"),),),
        (),
    ]
    assert methods.authenticate(Credentials("tls", certificate={"subject": names[0], "notAfter": end})).role == "a"
    for subject in names[1:]:
        with pytest.raises(AuthenticationError):
            methods.authenticate(Credentials("tls", certificate={"subject": subject, "notAfter": end}))
    with pytest.raises(AuthenticationError):
        methods.authenticate(Credentials("tls"))
    with pytest.raises(AuthenticationError):
        methods.authenticate(
            Credentials("tls", certificate={"subject": names[0], "notAfter": "Jan  1 00:00:00 1970 GMT"})
        )


class Timers:
    """A loop's timers and a clock, moved by hand."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.waiting: list[tuple[float, Callable[[], None]]] = []

    def call_later(self, delay_s: float, call: Callable[[], None]) -> Timers:
        self.waiting = [(self.now_ms + delay_s * 1000, call)]
        return self

    def cancel(self) -> None:
        self.waiting = []

    def run_until(self, now_ms: int) -> None:
        while self.waiting and self.waiting[0][0] <= now_ms:
            at, call = self.waiting.pop()
            self.now_ms = int(at)
            call()
        self.now_ms = now_ms


def watched(can_ask: bool) -> tuple[Timers, CredentialWatch, list[tuple[str, int]]]:
    timers, events = Timers(), []
    ask = (lambda: events.append(("asked", timers.now_ms))) if can_ask else None
    watch = CredentialWatch(
        lambda: timers.now_ms, timers.call_later, ask, lambda: events.append(("ended", timers.now_ms))
    )
    return timers, watch, events


def test_the_end_comes_in_time() -> None:
    timers, watch, events = watched(can_ask=False)
    watch.begin(3 * RECHECK_MS + 5)
    timers.run_until(4 * RECHECK_MS)
    assert events == [("ended", 3 * RECHECK_MS + 5)]


def test_a_client_is_asked_before_the_end() -> None:
    timers, watch, events = watched(can_ask=True)
    watch.begin(100_000)
    timers.run_until(100_000 - CHALLENGE_LEAD_MS)
    assert events == [("asked", 100_000 - CHALLENGE_LEAD_MS)]
    assert watch.asked
    watch.begin(None)
    timers.run_until(10 * RECHECK_MS)
    assert len(events) == 1
    assert not watch.asked


def test_the_same_credential_again_is_asked_for_ever_more_shortly_and_then_ends() -> None:
    timers, watch, events = watched(can_ask=True)
    watch.begin(8000)
    while timers.waiting:
        timers.run_until(int(timers.waiting[0][0]))
        if watch.asked:
            watch.begin(8000)
    assert events[-1] == ("ended", 8000)
    assert len(events) <= 6
