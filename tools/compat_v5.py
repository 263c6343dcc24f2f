"""Apache Pulsar's own V5 test classes, as they are, against `magnetar standalone`: the suite java-v5 of `make compat-all`.

    PULSAR_V5_TESTS=DIRECTORY make compat-all ARGS=java-v5

DIRECTORY has the compiled test classes of the package org.apache.pulsar.client.api.v5, which Apache publishes nowhere in this form: who
wants to run the suite brings them. This command neither fetches nor compiles them. The clients and TestNG are jars from Maven Central.

The classes extend one that starts a broker inside the process. tests/compat/v5/upstream/SharedPulsarBaseTest.java takes its place in the
class path: it starts nothing, and its clients go to the server of the suite. A class that reaches into the broker's process cannot pass
here, and stands in tests/compat/java-v5.allow with that reason.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import compat

VERSION = os.environ.get("JAVA_V5_CLIENT", "5.0.0-M1")
PLACE = compat.ROOT / "tests" / "compat" / "v5" / "upstream"
PACKAGE = "org.apache.pulsar.client.api.v5"
VARIABLE = "PULSAR_V5_TESTS"

SETTINGS = """
allowAutoTopicCreationType=non-partitioned
brokerDeduplicationEnabled=true
brokerDeleteInactiveTopicsEnabled=false
forceDeleteNamespaceAllowed=true
forceDeleteTenantAllowed=true
transactionCoordinatorEnabled=true
"""
"""As the cluster that these classes share in Apache's build is set up."""


def test_classes(directory: Path) -> list[str]:
    """The classes with tests, by their full names. The bases of others are not among them."""
    found = (directory / PACKAGE.replace(".", "/")).glob("V5*Test.class")
    return sorted(f"{PACKAGE}.{path.stem}" for path in found if not path.stem.endswith("BaseTest"))


def jars(cache: Path, scratch: Path) -> Path:
    place = cache / f"java-v5-{VERSION}"
    if not place.exists():
        fetched = scratch / "jars"
        subprocess.run([PLACE / "fetch-jars", fetched, VERSION], check=True)
        shutil.move(fetched, place)
    return place


def command(place: Path, scratch: Path, tests: Path) -> list[str]:
    """What runs classes whose names are added, with our base class before anything of the same name that `tests` may have."""
    ours = scratch / "ours"
    sources = sorted(PLACE.glob("*.java"))
    subprocess.run(["javac", "-nowarn", "-cp", f"{place}/*", "-d", ours, *sources], check=True)
    addresses = ["-Dmagnetar.service=pulsar://localhost:6650", "-Dmagnetar.admin=http://localhost:8080"]
    return ["java", "-Xmx400m", *addresses, "-cp", f"{ours}:{tests}:{place}/*", "RunTests"]


def outcomes(classes: Sequence[str], text: str) -> list[compat.Outcome]:
    """One for each test, and one for a class that could not be loaded or was not reached."""
    found: dict[str, compat.Outcome] = {}
    for how, test, why in re.findall(r"^@ (\w+) (\S+) ?(.*)$", text, re.MULTILINE):
        if how != "configuration":
            found[test] = compat.Outcome(test, {"passed": "passed", "skipped": "skipped"}.get(how, "failed"), why)
    reached = {test.partition("::")[0] for test in found}
    for name in (full.rpartition(".")[2] for full in classes):
        if name not in reached:
            found[name] = compat.Outcome(name, "failed", f"not reached: {text.strip()[-200:]!r}")
    return list(found.values())
