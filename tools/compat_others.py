"""`make compat-all`: the own tests of other official clients, unmodified, against `magnetar standalone`.

    make compat-all                       all suites that this machine has the tools for
    make compat-all ARGS="go-admin"       one of them: pulsar-admin, go, go-admin, go-notices, rust, rust-plain, java, java-v5

The sources come from the Go module proxy and from crates.io by `go` and `cargo`, the jars from Maven Central by `mvn`. `go-notices` and
`java` are scenarios of our own, in tests/compat: the own tests of the Java client start brokers inside their process. `java-v5` runs those
of the V5 client that need only a server, whose compiled classes PULSAR_V5_TESTS names. A suite whose tool or directory is missing is left
out and said so. Each suite gets a fresh server on the ports that its addresses name, with TLS, tokens, passwords and
authorization where it wants them. What does not pass must stand in `tests/compat/SUITE.allow` with its reason, what stands there must not
pass: the lists only shrink. The outcome is written into docs/reference/compatibility.md.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import compat
import compat_v5
from compat_admin import pulsar_admin
from magnetar.broker.auth.basic import apr1

ROOT = compat.ROOT
CACHE = Path(os.environ.get("COMPAT_CACHE", Path.home() / ".cache" / "magnetar-compat"))
"""Sources and compiled tests, kept for the next run."""

GO_MODULE = "github.com/apache/pulsar-client-go"
GO_VERSION = os.environ.get("GO_CLIENT", "v0.19.0")
CRATE_VERSION = os.environ.get("PULSAR_RS", "6.9.1")
JAVA_VERSION = os.environ.get("JAVA_CLIENT", "4.2.4")
SUITE_S_MAX = 2400
"""A suite that takes longer is given up: what it has not reached has failed."""

SETTINGS = """
advertisedAddress=localhost
maxMessageSize=1048576
backlogQuotaCheckIntervalInSeconds=5
subscriptionKeySharedUseConsistentHashing=false
"""
PORTS_TLS = """
brokerServicePortTls=6651
webServicePortTls=8443
tlsCertificateFilePath={files}/certs/broker-cert.pem
tlsKeyFilePath={files}/certs/broker-key.pem
tlsTrustCertsFilePath={files}/certs/cacert.pem
"""
SECURITY = """
authenticationEnabled=true
authenticationProviders=tls,token,basic
authorizationEnabled=true
anonymousUserRole=anonymous
superUserRoles=localhost,superUser,admin
tokenSecretKey=file://{files}/tokens/secret.key
basicAuthConf=file://{directory}/htpasswd
"""


class Suite(NamedTuple):
    name: str
    about: str
    tools: tuple[str, ...]
    run: Callable[[Path], list[compat.Outcome]]
    given: str = ""
    """The environment variable that names a directory without which the suite is left out."""

    @property
    def allowed(self) -> Path:
        return ROOT / "tests" / "compat" / f"{self.name}.allow"


def main() -> int:
    chosen = sys.argv[1:]
    unknown = [name for name in chosen if name not in SUITES]
    if unknown:
        print(f"make compat-all: there is no suite {unknown[0]}; there are {', '.join(SUITES)}")
        return 2
    busy = [port for port in compat.PORTS if not compat.is_free(port)]
    if busy:
        print(f"make compat-all: the suites need port {busy[0]} of localhost, which is taken; stop what serves there")
        return 2
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # the server is stopped on the way out
    failed = False
    for suite in SUITES.values():
        if chosen and suite.name not in chosen:
            continue
        missing = [tool for tool in suite.tools if where_is(tool) is None]
        if missing:
            print(f"{suite.name}: left out, this machine has no `{missing[0]}`")
            continue
        if suite.given and not Path(os.environ.get(suite.given) or "/nowhere").is_dir():
            print(f"{suite.name}: left out, {suite.given} names no directory")
            continue
        print(f"{suite.name} ...", flush=True)
        with tempfile.TemporaryDirectory(prefix="magnetar-compat-") as scratch:
            outcomes = suite.run(Path(scratch))
        allowed = compat.allow_list(suite.allowed.read_text(encoding="utf-8"))
        problems = compat.judge(outcomes, allowed, complete=not suite.given)  # a directory may have a part of the tests
        passed = sum(outcome.outcome == "passed" for outcome in outcomes)
        print(f"{suite.name}: {passed} of {len(outcomes)} pass")
        for problem in problems:
            print(f"  {problem}")
        write_report(suite, passed, len(outcomes), allowed, problems)
        failed = failed or bool(problems)
    return 1 if failed else 0


def where_is(tool: str) -> Path | None:
    """A program that suites need. `protoc` is also what the package grpcio-tools of this Python brings."""
    found = shutil.which(tool) or os.environ.get(tool.upper())
    if found is None and tool == "protoc" and find_spec("grpc_tools") is not None:
        wrapper = CACHE / "protoc"
        wrapper.write_text(f'#!/bin/sh\nexec {sys.executable} -m grpc_tools.protoc "$@"\n')
        wrapper.chmod(0o755)
        return wrapper
    return Path(found) if found else None


def write_report(suite: Suite, passed: int, total: int, allowed: dict[str, str], problems: Sequence[str]) -> None:
    """Its section of the reference page."""
    begin, end = f"<!-- written by make compat-all: {suite.name} -->", f"<!-- end of {suite.name} -->"
    lines = [begin, f"{suite.about}, on {datetime.now(UTC):%Y-%m-%d}: {passed} of {total} pass."]
    lines += ["\n".join(f"- {problem}" for problem in problems)] if problems else []
    if allowed:
        cannot = (f"- `{test}`: {reason.removeprefix(compat.DEPENDS).strip()}" for test, reason in allowed.items())
        lines += ["Cannot, and why:", "\n".join(cannot)]
    text = compat.REPORT.read_text(encoding="utf-8")
    before, after = text.partition(begin)[0], text.partition(end)[2]
    compat.REPORT.write_text(before + "\n\n".join([*lines, end]) + after, encoding="utf-8")


# ---- A server as the suites' own scripts start and fill one


@contextmanager
def served(
    scratch: Path, files: Path, *, tls: bool = False, secured: bool = False, settings: str = ""
) -> Iterator[None]:
    """`files`: the suite's own certificates and tokens. `settings`: more lines of the configuration."""
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith(("MAGNETAR_", "PULSAR_PREFIX_"))
    }
    (scratch / "htpasswd").write_text(f"admin:{apr1(b'123456', 'saltsalt')}\n")
    text = SETTINGS + (PORTS_TLS if tls else "") + (SECURITY if secured else "") + settings
    configuration = scratch / "suite.conf"
    configuration.write_text(text.format(files=files, directory=scratch))
    command = [sys.executable, "-m", "magnetar", "standalone", "--config", str(configuration)]
    with (scratch / "server.log").open("w") as log:
        server = subprocess.Popen(
            [*command, "--data-dir", str(scratch / "data")],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=environment,
        )
    try:
        assert server.stdout is not None
        if not server.stdout.readline().startswith("magnetar ready"):
            raise SystemExit((scratch / "server.log").read_text()[-4000:])
        if secured:
            compat.fill(compat.token_of("superUser", files / "tokens" / "secret.key", environment))
        yield
    finally:
        server.terminate()
        server.wait(30)
        shutil.copy(scratch / "server.log", CACHE / "server.log")


def finished(command: Sequence[str], where: Path, log: Path, environment: dict[str, str] | None = None) -> str:
    """What a command printed, however it ended."""
    with log.open("w") as output:
        process = subprocess.Popen(
            command, cwd=where, stdout=output, stderr=subprocess.STDOUT, env=os.environ | (environment or {})
        )
        try:
            process.wait(SUITE_S_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    return log.read_text(encoding="utf-8", errors="replace")


def outcomes_of(names: Sequence[str], found: dict[str, str], text: str) -> list[compat.Outcome]:
    return [
        compat.Outcome(
            name, found.get(name, "failed"), "" if name in found else f"not reached: {text.strip()[-200:]!r}"
        )
        for name in names
    ]


# ---- The Go client


def go_sources() -> Path:
    """A copy that may be written to, as its tests want it."""
    copy = CACHE / f"go-{GO_VERSION}"
    if not copy.exists():
        asked = ["go", "mod", "download", "-json", f"{GO_MODULE}@{GO_VERSION}"]
        found = json.loads(subprocess.run(asked, check=True, capture_output=True, text=True, cwd=CACHE).stdout)
        shutil.copytree(found["Dir"], copy)
        subprocess.run(["chmod", "-R", "u+w", str(copy)], check=True)
    return copy


def go_tests(scratch: Path, packages: Sequence[str], *, secured: bool = True) -> list[compat.Outcome]:
    """Compiled before the server starts; each package's tests in turn on one server."""
    sources = go_sources()
    binaries = []
    for package in packages:
        binary = CACHE / f"{GO_VERSION}-{package.replace('/', '-')}.test"
        if not binary.exists():
            subprocess.run(["go", "test", "-c", "-o", str(binary), f"./{package}"], check=True, cwd=sources)
        binaries.append((package, binary))
    outcomes = []
    with served(scratch, sources / "integration-tests", tls=secured, secured=secured):
        for package, binary in binaries:
            if not binary.exists():
                continue  # a package without tests
            where = sources / package
            asked = [str(binary), "-test.list", "."]
            names = subprocess.run(asked, check=True, capture_output=True, text=True, cwd=where).stdout.split()
            names = [name for name in names if name.startswith("Test") and name not in ENVIRONMENTS]
            found, text = go_run(binary, where, names)
            outcomes += [each._replace(test=f"{package}::{each.test}") for each in outcomes_of(names, found, text)]
    return outcomes


def go_run(binary: Path, where: Path, names: Sequence[str]) -> tuple[dict[str, str], str]:
    """Outcomes by test, and the last words. A panic ends the process: the rest is then run in another one."""
    found: dict[str, str] = {}
    text = ""
    for attempt in range(PANICS_MAX):
        left = [name for name in names if name not in found]
        if not left:
            break
        run = [str(binary), "-test.v", "-test.timeout", f"{SUITE_S_MAX}s", "-test.run", f"^({'|'.join(left)})$"]
        text = finished(run, where, CACHE / f"{binary.stem}-{attempt}.log")
        for how, name in re.findall(r"^--- (PASS|FAIL|SKIP): (\S+)", text, re.MULTILINE):
            found[name] = {"PASS": "passed", "FAIL": "failed", "SKIP": "skipped"}[how]
        under_way = [name for name in re.findall(r"^=== RUN +([^/\s]+)$", text, re.MULTILINE) if name not in found]
        if under_way:
            found[under_way[-1]] = "failed"
    return found, text


PANICS_MAX = 8
"""So often the rest of a package's tests is run again after one of them ended the process."""

ENVIRONMENTS = ("TestBlueGreenMigrationTestSuite", "TestExtensibleLoadManagerTestSuite", "TestTransactionDisabled")
"""Tests that belong to clusters of containers with fixed names, which the suite itself runs apart from all others."""


def go_client(scratch: Path) -> list[compat.Outcome]:
    return go_tests(scratch, ["pulsar", "pulsar/internal", "pulsar/auth", "pulsar/crypto", "oauth2"])


def go_admin(scratch: Path) -> list[compat.Outcome]:
    return go_tests(scratch, ["pulsaradmin/pkg/admin", "pulsaradmin/pkg/rest", "pulsaradmin/pkg/utils"])


def go_notices(scratch: Path) -> list[compat.Outcome]:
    """Scenarios of our own, as another package of the module."""
    package = go_sources() / "notices"
    package.mkdir(exist_ok=True)
    shutil.copy(ROOT / "tests" / "compat" / "go" / "notices_test.go", package)
    (CACHE / f"{GO_VERSION}-notices.test").unlink(missing_ok=True)
    return go_tests(scratch, ["notices"], secured=False)


# ---- pulsar-rs


def crate_sources() -> Path:
    """The crate as a package that is compiled by itself, which is the only one that cargo runs the tests of."""
    copy = CACHE / f"rust-{CRATE_VERSION}"
    if not copy.exists():
        asking = CACHE / "asking"
        shutil.rmtree(asking, ignore_errors=True)
        subprocess.run(["cargo", "new", "--quiet", "--vcs", "none", str(asking)], check=True)
        subprocess.run(["cargo", "add", "--quiet", f"pulsar@={CRATE_VERSION}"], check=True, cwd=asking)
        subprocess.run(["cargo", "vendor", "--quiet", "vendor"], check=True, cwd=asking, capture_output=True)
        shutil.copytree(asking / "vendor" / "pulsar", copy)
    return copy


def rust_tests(scratch: Path, *, tls: bool) -> list[compat.Outcome]:
    sources = crate_sources()
    target = {"CARGO_TARGET_DIR": str(CACHE / "rust-target"), "PROTOC": str(where_is("protoc"))}
    subprocess.run(["cargo", "test", "--lib", "--no-run"], check=True, cwd=sources, env=os.environ | target)
    files = go_sources() / "integration-tests" if tls else scratch
    with served(scratch, files, tls=tls, settings="schemaJsonAllowLegacyJacksonFormat=true\n"):
        command = ["cargo", "test", "--lib", "--", "--test-threads=1"]
        text = finished(command, sources, CACHE / "rust.log", target)
    found = {
        name: {"ok": "passed", "FAILED": "failed", "ignored": "skipped"}[how]
        for name, how in re.findall(r"^test (\S+) \.\.\. (?:.*\n)*?.*?(ok|FAILED|ignored)$", text, re.MULTILINE)
    }
    asked = ["cargo", "test", "--lib", "--", "--list"]
    listed = subprocess.run(asked, check=True, capture_output=True, text=True, cwd=sources, env=os.environ | target)
    names = [line.removesuffix(": test") for line in listed.stdout.splitlines() if line.endswith(": test")]
    return outcomes_of(names, found, text)


# ---- The Java client


def java_tests(scratch: Path) -> list[compat.Outcome]:
    jars, scenarios = CACHE / f"java-{JAVA_VERSION}", ROOT / "tests" / "compat" / "java" / "Scenarios.java"
    if not jars.exists():
        fetched = scratch / "jars"
        subprocess.run([ROOT / "tests" / "compat" / "pulsar" / "fetch-jars", fetched, JAVA_VERSION], check=True)
        shutil.move(fetched, jars)
    run = ["java", "-Xmx300m", "-cp", f"{jars}/*", str(scenarios)]
    names = subprocess.run([*run, "list"], check=True, capture_output=True, text=True).stdout.split()
    with served(scratch, scratch):
        text = finished([*run, "pulsar://localhost:6650", "http://localhost:8080"], scratch, CACHE / "java.log")
    found = dict(re.findall(r"^(?:PASS|FAIL) (\w+)(.*)", text, re.MULTILINE))
    outcomes = [
        compat.Outcome(name, "failed" if found[name] else "passed", found[name].removeprefix(": ")) for name in found
    ]
    return outcomes + outcomes_of([name for name in names if name not in found], {}, text)


def java_v5_tests(scratch: Path) -> list[compat.Outcome]:
    """A class by itself: what one leaves behind, or a test that never ends, is no other's matter."""
    tests = Path(os.environ[compat_v5.VARIABLE]).resolve()
    run = compat_v5.command(compat_v5.jars(CACHE, scratch), scratch, tests)
    outcomes = []
    with served(scratch, scratch, settings=compat_v5.SETTINGS):
        for name in compat_v5.test_classes(tests):
            text = finished([*run, name], scratch, CACHE / f"java-v5-{name.rpartition('.')[2]}.log")
            outcomes += compat_v5.outcomes([name], text)
    return outcomes


SUITES = {
    suite.name: suite
    for suite in (
        Suite(
            "pulsar-admin",
            "Commands of pulsar-admin 4.0.8, compared with Apache Pulsar 4.2.4",
            ("mvn", "java"),
            pulsar_admin,
        ),
        Suite("go", f"Go client {GO_VERSION}", ("go",), go_client),
        Suite("go-admin", f"Admin package of the Go client {GO_VERSION}", ("go",), go_admin),
        Suite(
            "rust",
            f"pulsar-rs {CRATE_VERSION}",
            ("cargo", "protoc", "go"),
            lambda scratch: rust_tests(scratch, tls=True),
        ),
        Suite(
            "rust-plain",
            f"pulsar-rs {CRATE_VERSION}, a server without TLS port",
            ("cargo", "protoc"),
            lambda scratch: rust_tests(scratch, tls=False),
        ),
        Suite("go-notices", f"Go client {GO_VERSION}: who sends or receives is always told", ("go",), go_notices),
        Suite("java", f"Scenarios with the Java client {JAVA_VERSION}", ("java", "mvn"), java_tests),
        Suite(
            "java-v5",
            f"Apache Pulsar's V5 test classes with the V5 client {compat_v5.VERSION}",
            ("java", "javac", "mvn"),
            java_v5_tests,
            compat_v5.VARIABLE,
        ),
    )
}


if __name__ == "__main__":
    CACHE.mkdir(parents=True, exist_ok=True)
    sys.exit(main())
