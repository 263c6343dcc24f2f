"""What is in deploy/: dashboards of metrics that exist, rules that promtool takes, units and containers whose options the commands know."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import yaml

from magnetar.base.settings import table_of
from magnetar.cli.main import cli
from magnetar.processes.configurations import (
    AutorecoveryConfig,
    BookieProcessConfig,
    BrokerProcessConfig,
    MetadataServerConfig,
    StandaloneConfig,
)

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
PROMTOOL, SYSTEMD = shutil.which("promtool"), shutil.which("systemd-analyze")
CONFIGS = {
    "autorecovery": AutorecoveryConfig,
    "bookie": BookieProcessConfig,
    "broker": BrokerProcessConfig,
    "metadata-server": MetadataServerConfig,
    "standalone": StandaloneConfig,
}


@pytest.fixture(scope="module")
def dashboards() -> Iterator[object]:
    sys.path.insert(0, str(ROOT / "tools"))
    import dashboards

    yield dashboards
    sys.path.remove(str(ROOT / "tools"))


def test_dashboards_and_alerts_ask_for_what_is_exported(dashboards: object) -> None:
    assert list(dashboards.problems()) == []  # type: ignore[attr-defined]


def test_a_metric_that_goes_is_noticed(dashboards: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a panel, of an alert, and of neither: the dashboard of all metrics is stale then."""
    everything = dashboards.declared()  # type: ignore[attr-defined]
    for name, told in (
        ("pulsar_msg_backlog", "panel 'Backlog'"),
        ("bookie_SERVER_STATUS", "alert rules"),
        ("pulsar_lb_is_leader", "stale"),
    ):
        without = {group: names - {name} for group, names in everything.items()}
        monkeypatch.setattr(dashboards, "declared", lambda without=without: without)
        assert any(told in each for each in dashboards.problems()), name  # type: ignore[attr-defined]


def test_every_dashboard_is_whole() -> None:
    for path in (DEPLOY / "grafana").glob("*.json"):
        found = json.loads(path.read_text())
        ids = [panel["id"] for panel in found["panels"]]
        assert len(ids) == len(set(ids))
        used = set(re.findall(r"\$(cluster|namespace|pipeline)\b", path.read_text()))
        assert used <= {each["name"] for each in found["templating"]["list"]}, path.name


@pytest.mark.skipif(not PROMTOOL, reason="needs promtool: apt-get install prometheus")
def test_promtool(tmp_path: Path) -> None:
    """The rules, their own tests, the scrape configuration, and every query of a dashboard."""
    prometheus = DEPLOY / "prometheus"
    expressions = {
        target["expr"]
        for path in (DEPLOY / "grafana").glob("*.json")
        for panel in json.loads(path.read_text())["panels"]
        for target in panel.get("targets", ())
    }
    plain = [re.sub(r"\$__rate_interval", "5m", each) for each in sorted(expressions)]
    rules = [{"record": f"query:{number}", "expr": each} for number, each in enumerate(plain)]
    (tmp_path / "queries.yml").write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
    for words in (
        ("check", "rules", str(prometheus / "rules.yml"), str(tmp_path / "queries.yml")),
        ("test", "rules", str(prometheus / "rules_test.yml")),
        ("check", "config", str(prometheus / "prometheus.yml")),
    ):
        done = subprocess.run([str(PROMTOOL), *words], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr


def command_lines() -> dict[str, list[str]]:
    """Every command line of magnetar in deploy/, by where it stands."""
    found = {}
    for path in sorted((DEPLOY / "systemd").glob("*.service")):
        (line,) = re.findall(r"^ExecStart=/opt/magnetar/bin/magnetar (.*)$", path.read_text(), re.M)
        found[path.name] = shlex.split(line)
    (words,) = re.findall(r"^CMD (\[.*\])$", (DEPLOY / "Containerfile").read_text(), re.M)
    found["Containerfile"] = json.loads(words)
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    return found | {name: service["command"] for name, service in services.items() if "command" in service}


@pytest.mark.parametrize("where", command_lines())
def test_commands_know_their_options(where: str) -> None:
    name, *words = command_lines()[where]
    command = cli.get_command(click.Context(cli), name)
    assert command is not None, name
    context = command.make_context(name, list(words), resilient_parsing=True)
    assert not context.args, context.args
    known = {option for parameter in command.params for option in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= known
    for place, word in enumerate(words):
        if word == "--set":
            key = words[place + 1].partition("=")[0]
            assert key in {row.key for row in table_of(CONFIGS[name]).values()}, key


def test_compose_depends_on_what_it_has() -> None:
    found = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    services = found["services"]
    for name, service in services.items():
        assert set(service.get("depends_on", ())) <= set(services), name
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:"), f"{name}: without authentication only this machine may reach {port}"
        for volume in service.get("volumes", ()):
            source = volume.partition(":")[0]
            assert source in found["volumes"] or (DEPLOY / source).exists(), source
    scraped = re.findall(r'"(\w+):\d+"', (DEPLOY / "prometheus" / "prometheus.yml").read_text())
    assert set(scraped) - {"driver", "alertmanager"} <= set(services)


@pytest.mark.skipif(not SYSTEMD, reason="needs systemd-analyze: apt-get install systemd")
def test_units() -> None:
    """That nothing is installed at /opt/magnetar here is no fault of the units."""
    units = sorted(str(path) for path in (DEPLOY / "systemd").glob("*.service"))
    done = subprocess.run([str(SYSTEMD), "verify", "--man=no", *units], capture_output=True, text=True, timeout=60)
    told = [line for line in done.stderr.splitlines() if line.strip() and "is not executable" not in line]
    assert told == []
