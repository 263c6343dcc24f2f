"""`make compat`: the official Python client's own test suite, unmodified, against `magnetar standalone`.

    PULSAR_CLIENT_PYTHON=DIR make compat          DIR: a checkout of apache/pulsar-client-python

Fetches nothing. Each file gets a fresh server with TLS, tokens, passwords and authorization, on the ports that the suite names. What
does not pass must stand in `tests/compat/pulsar-client-python.allow` with its reason, what stands there must not pass. The outcome is
written into docs/reference/compatibility.md.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from magnetar.admin.client import AdminClient, ConflictError
from magnetar.broker.auth.basic import apr1

ROOT = Path(__file__).resolve().parents[1]
ALLOWED = ROOT / "tests" / "compat" / "pulsar-client-python.allow"
REPORT = ROOT / "docs" / "reference" / "compatibility.md"
BEGIN, END = "<!-- written by make compat -->", "<!-- end of what make compat writes -->"
PORTS = (6650, 6651, 8080, 8443)
"""Literals in the suite."""

FILE_S_MAX = 1800
"""A file that takes longer is given up."""

ABORTS_MAX = 3
"""So often the rest of a file is run again after the client library aborted its own process."""

SETTINGS = """
advertisedAddress=localhost
maxMessageSize=1024000
brokerServicePortTls=6651
webServicePortTls=8443
tlsCertificateFilePath={suite}/test-conf/broker-cert.pem
tlsKeyFilePath={suite}/test-conf/broker-key.pem
tlsTrustCertsFilePath={suite}/test-conf/cacert.pem
authenticationEnabled=true
authenticationProviders=tls,token,basic
authorizationEnabled=true
anonymousUserRole=anonymous
superUserRoles=localhost,superUser,admin
tokenSecretKey=file://{directory}/secret.key
basicAuthConf=file://{directory}/htpasswd
"""


class Outcome(NamedTuple):
    test: str
    outcome: str
    why: str


def main() -> int:
    given = os.environ.get("PULSAR_CLIENT_PYTHON", "")
    suite = next((path for path in (Path(given) / "tests", Path(given)) if (path / "pulsar_test.py").is_file()), None)
    if not given or suite is None:
        print("make compat: set PULSAR_CLIENT_PYTHON to a checkout of https://github.com/apache/pulsar-client-python")
        print("             (git clone it yourself: this command fetches nothing)")
        return 2
    busy = [port for port in PORTS if not is_free(port)]
    if busy:
        print(f"make compat: the suite needs port {busy[0]} of localhost, which is taken; stop what serves there")
        return 2
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # the server is stopped on the way out
    chosen = sys.argv[1:]
    allowed = allow_list(ALLOWED.read_text(encoding="utf-8"))
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory(prefix="magnetar-compat-") as scratch:
        for file in sorted(suite.glob("*_test.py")):
            if not chosen or file.name in chosen:
                outcomes += run_file(suite, file.name, Path(scratch) / file.stem)
    problems = judge(outcomes, allowed, complete=not chosen)
    table = tabulate(outcomes, allowed)
    print(table)
    for problem in problems:
        print(problem)
    if not chosen:
        write_report(table, problems, allowed, commit_of(suite))
    return 1 if problems else 0


# ---- One file, on a server of its own


def run_file(suite: Path, name: str, scratch: Path) -> list[Outcome]:
    """Every test's outcome. A test during which the client's process died is run once more, alone."""
    scratch.mkdir(parents=True)
    copy = scratch / "tests"
    shutil.copytree(suite, copy)
    print(f"{name} ...", flush=True)
    found: dict[str, Outcome] = {}
    with served(copy, scratch):
        names = listed(copy / name)
        for attempt in range(ABORTS_MAX + 1):
            left = [test for test in names if test not in found]
            if not left:
                break
            for outcome in run_tests(copy / name, scratch / f"results{attempt}", left):
                if outcome.outcome != "started":
                    for test in covered(outcome.test, names):
                        found[test] = Outcome(test, outcome.outcome, outcome.why)
                elif attempt:
                    found[outcome.test] = Outcome(outcome.test, "failed", "the client's process died, repeatedly")
    rest = [
        Outcome(test, "failed", "not reached: the client's process died before") for test in names if test not in found
    ]
    together = [*found.values(), *rest]
    return [Outcome(f"{name}::{outcome.test}", outcome.outcome, outcome.why) for outcome in together]


def covered(test: str, names: Sequence[str]) -> list[str]:
    """The test, or all of a class that could not be set up: `setUpClass (module.Class)`."""
    holder = re.fullmatch(r"(?:setUp|tearDown)Class \((?:.*\.)?(\w+)\)", test)
    return [name for name in names if name.startswith(f"{holder[1]}::")] if holder else [test]


def listed(file: Path) -> list[str]:
    """`Class::test` of a file, without importing it."""
    found, holder = [], ""
    for line in file.read_text(encoding="utf-8").splitlines():
        if match := re.match(r"class (\w+)\(", line):
            holder = match[1]
        elif match := re.match(r"    (?:async )?def (test\w*)\(self", line):
            found.append(f"{holder}::{match[1]}")
    return list(dict.fromkeys(found))


def run_tests(file: Path, results: Path, tests: Sequence[str]) -> list[Outcome]:
    """The last word on each test that was begun: `started` for the one during which the process died."""
    results.write_text("")
    command = [sys.executable, str(ROOT / "tools" / "compat_runner.py"), file.name, str(results), *tests]
    environment = os.environ | {"no_proxy": "localhost,127.0.0.1", "http_proxy": "", "PYTHONFAULTHANDLER": "1"}
    environment |= stand_ins(results.parent)
    with (results.parent / f"{results.name}.log").open("w") as log:
        process = subprocess.Popen(command, cwd=file.parent, stdout=log, stderr=subprocess.STDOUT, env=environment)
        try:
            process.wait(FILE_S_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    found: dict[str, Outcome] = {}
    for line in results.read_text().splitlines():
        outcome = Outcome(**json.loads(line))
        if not (outcome.outcome == "passed" and found.get(outcome.test, outcome).outcome == "failed"):
            found[outcome.test] = outcome
    if process.returncode < 0:
        under_way = [outcome.test for outcome in found.values() if outcome.outcome == "started"]
        when = f"in {under_way[0]}" if under_way else "after its last test"
        print(f"  the client's process died {when}: {signal.Signals(-process.returncode).name}", flush=True)
    return list(found.values())


def stand_ins(scratch: Path) -> dict[str, str]:
    """What makes processes of this server out of the suite's containers: a package, and something that is called docker."""
    programs = scratch / "bin"
    programs.mkdir(exist_ok=True)
    docker = programs / "docker"
    docker.write_text("#!/bin/sh\nexit 1\n")
    docker.chmod(0o755)
    found = [str(ROOT / "tools" / "compat_stand_ins"), os.environ.get("PYTHONPATH", "")]
    path = os.pathsep.join([str(programs), os.environ.get("PATH", "")])
    return {"PYTHONPATH": os.pathsep.join(filter(None, found)), "PATH": path, "TMPDIR": str(scratch)}


@contextmanager
def served(suite: Path, scratch: Path) -> Iterator[None]:
    """A server as the suite's own script starts and fills one."""
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith(("MAGNETAR_", "PULSAR_PREFIX_"))
    }
    secret = scratch / "secret.key"
    magnetar = [sys.executable, "-m", "magnetar"]
    subprocess.run([*magnetar, "tokens", "create-secret-key", "--output", str(secret)], check=True, env=environment)
    tokens = {role: token_of(role, secret, environment) for role in ("superUser", "token-principal")}
    (suite / ".test-token.txt").write_text(tokens["token-principal"])
    (scratch / "htpasswd").write_text(f"admin:{apr1(b'123456', 'saltsalt')}\n")
    configuration = scratch / "suite.conf"
    configuration.write_text(SETTINGS.format(suite=suite, directory=scratch))
    command = [*magnetar, "standalone", "--config", str(configuration), "--data-dir", str(scratch / "data")]
    with (scratch / "server.log").open("w") as log:
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment)
    try:
        assert server.stdout is not None
        if not server.stdout.readline().startswith("magnetar ready"):
            raise SystemExit((scratch / "server.log").read_text()[-4000:])
        fill(tokens["superUser"])
        yield
    finally:
        server.terminate()
        server.wait(30)


def token_of(role: str, secret: Path, environment: dict[str, str]) -> str:
    command = [
        sys.executable,
        "-m",
        "magnetar",
        "tokens",
        "create",
        "--secret-key",
        f"file://{secret}",
        "--subject",
        role,
    ]
    return subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout.strip()


def fill(token: str) -> None:
    """Tenants, namespaces and permissions that the suite takes for granted."""
    both = ["produce", "consume"]
    with AdminClient("http://localhost:8080", token=token) as admin:
        admin.tenants.update("public", admin_roles=["anonymous"], allowed_clusters=["standalone"])
        admin.tenants.create("private", allowed_clusters=["standalone"])
        for namespace, role in (
            ("public/default", "anonymous"),
            ("public/default-2", "anonymous"),
            ("private/auth", "token-principal"),
        ):
            try:
                admin.namespaces.create(namespace)
            except ConflictError:
                pass  # the server's own
            admin.namespaces.grant(namespace, role, both)


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


# ---- Judging


DEPENDS = "?"
"""Begins a reason that is the machine's: there the test may pass."""


def allow_list(text: str) -> dict[str, str]:
    """Reason by `file::Class::test`. Raises SystemExit for a line without a reason."""
    found = {}
    for line in text.splitlines():
        if line.strip() and not line.startswith("#"):
            test, separator, reason = line.partition(" : ")
            if not separator or not reason.strip():
                raise SystemExit(f"{ALLOWED.name}: no reason in {line!r}")
            found[test.strip()] = reason.strip()
    return found


def judge(outcomes: Sequence[Outcome], allowed: dict[str, str], *, complete: bool) -> list[str]:
    """One line for each test that failed without leave, or passed although it is allowed not to."""
    problems = []
    for outcome in outcomes:
        if outcome.outcome != "passed" and outcome.test not in allowed:
            problems.append(f"FAILED {outcome.test}: {outcome.why}")
        elif outcome.outcome == "passed" and not allowed.get(outcome.test, DEPENDS).startswith(DEPENDS):
            problems.append(f"PASSED {outcome.test}: take it out of {ALLOWED.name}")
    known = {outcome.test for outcome in outcomes}
    if complete:
        problems += [
            f"UNKNOWN {test}: {ALLOWED.name} names a test that is not there" for test in allowed if test not in known
        ]
    return problems


def tabulate(outcomes: Sequence[Outcome], allowed: dict[str, str]) -> str:
    """Passed, failed, cannot, for each file."""
    rows = ["| file | passed | failed | cannot |", "|---|---|---|---|"]
    total = [0, 0, 0]
    for file in dict.fromkeys(outcome.test.partition("::")[0] for outcome in outcomes):
        of_file = [outcome for outcome in outcomes if outcome.test.partition("::")[0] == file]
        passed = sum(outcome.outcome == "passed" for outcome in of_file)
        cannot = sum(outcome.outcome != "passed" and outcome.test in allowed for outcome in of_file)
        counts = [passed, len(of_file) - passed - cannot, cannot]
        total = [before + count for before, count in zip(total, counts, strict=True)]
        rows.append(f"| {file} | {' | '.join(map(str, counts))} |")
    return "\n".join([*rows, f"| together | {' | '.join(map(str, total))} |"])


def commit_of(suite: Path) -> str:
    done = subprocess.run(["git", "-C", str(suite), "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    inside = done.returncode == 0 and not str(suite.resolve()).startswith(str(ROOT))
    return f"commit {done.stdout.strip()[:12]}" if inside else "of unknown commit"


def write_report(table: str, problems: Sequence[str], allowed: dict[str, str], commit: str) -> None:
    today = f"{datetime.now(UTC):%Y-%m-%d}"
    parts = [BEGIN, f"Run on {today}: suite {commit}, wheel pulsar-client {version('pulsar-client')}.", table]
    if problems:
        parts.append("\n".join(f"- {problem}" for problem in problems))
    parts.append("Cannot, and why:")
    parts.append("\n".join(f"- `{test}`: {reason.removeprefix(DEPENDS).strip()}" for test, reason in allowed.items()))
    text = REPORT.read_text(encoding="utf-8")
    before, after = text.partition(BEGIN)[0], text.partition(END)[2]
    REPORT.write_text(before + "\n\n".join([*parts, END]) + after, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
