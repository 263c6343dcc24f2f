"""Exit codes, error lines and start-up time of the `magnetar` command."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from magnetar.cli.main import COMMANDS, run

MAGNETAR = Path(sys.executable).parent / "magnetar"


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    shown = capsys.readouterr().out
    assert [name for name in COMMANDS if f"  {name} " not in shown] == []


def test_help_is_light() -> None:
    """Start-up is a feature: help must not import what only commands need. Time is measured by the bench."""
    code = "import sys; from magnetar.cli.main import run; run(['--help']); print(sorted(sys.modules), file=sys.stderr)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for heavy in ("numpy", "pulsar", "rich", "asyncio", "google", "starlette", "httptools", "urllib.request"):
        assert f"'{heavy}'" not in result.stderr, heavy


@pytest.mark.parametrize(
    ("args", "code", "text"),
    [
        (["produc"], 2, "Did you mean 'produce'?"),
        (["--nope"], 2, "--nope"),
        (["produce", "t"], 2, "nothing to send"),
        (["produce", "t", "-m", "x", "-p", "a"], 2, "K=V"),
        (["produce", "t", "-f", "/nonexistent"], 1, "cannot read /nonexistent"),
        (["produce", "t", "-m", "x", "--url", "pulsar://127.0.0.1:1"], 1, "start a server there"),
        (["consume", "t", "-s", "s", "--url", "pulsar://127.0.0.1:1"], 1, "start a server there"),
        (["topics", "list", "--admin-url", "http://127.0.0.1:1"], 1, "start a server there"),
        (["topics", "list", "a"], 1, "write it as tenant/namespace"),
        (["topics", "stats", "a/b"], 1, "is not a topic name"),
        (["config", "explain", "maxMesageSize"], 1, "the nearest is 'maxMessageSize'"),
        (["standalone", "--set", "maxMesageSize=1"], 1, "the nearest is 'maxMessageSize'"),
        (["standalone", "--set", "a"], 1, "expected KEY=VALUE"),
        (["standalone", "--port", "70000"], 2, "70000"),
        (["standalone", "--bind-address", "0.0.0.0"], 1, "--insecure-listen"),
        (["standalone", "--config", "/nonexistent"], 1, "cannot read the configuration file /nonexistent"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_failures_are_one_line_and_an_honest_code(
    args: list[str], code: int, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(args) == code
    output = capsys.readouterr()
    assert output.out == ""
    assert text in output.err
    if code == 1:
        assert output.err.count("\n") == 1
        assert output.err.startswith("magnetar: ")


def test_a_reader_that_goes_away_is_no_error_message() -> None:
    result = subprocess.run(f"{MAGNETAR} config list | true", shell=True, capture_output=True, text=True)
    assert result.stderr == ""


def test_config_as_json(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAGNETAR_PORT", "1234")
    assert run(["config", "list", "--changed", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [
        {"key": "brokerServicePort", "value": 1234, "unit": "", "source": "MAGNETAR_PORT"}
    ]
    assert run(["config", "explain", "port", "--json"]) == 0
    about = json.loads(capsys.readouterr().out)
    assert (about["key"], about["allowed"], about["value"], about["source"]) == (
        "brokerServicePort",
        "0 to 65535",
        1234,
        "MAGNETAR_PORT",
    )


def test_in_a_pipe_rows_are_indented_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["config", "list"]) == 0
    indented = capsys.readouterr().out
    assert indented.startswith('[\n  {\n    "key": ')
    assert run(["config", "list", "--json"]) == 0
    on_one_line = capsys.readouterr().out
    assert on_one_line.count("\n") == 1
    assert json.loads(indented) == json.loads(on_one_line)


def test_a_table_in_a_pipe_is_tab_separated(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["config", "list", "--table"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "key\tvalue\tunit\tsource"
    assert "maxMessageSize\t5242880\tbytes\tdefault" in lines


def test_json_and_table_exclude_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["config", "list", "--table", "--json"]) == 2
    assert "not both" in capsys.readouterr().err


def test_version_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["version", "--json"]) == 0
    assert {"magnetar", "python", "pulsar-client"} <= json.loads(capsys.readouterr().out).keys()


def test_an_interrupt_during_an_import_ends_the_process_at_once() -> None:
    """As an exception it becomes another one in the middle of an import: a RuntimeError of `__set_name__`, exit code 1, a traceback."""
    code = """
import signal
from magnetar.cli.interrupts import interrupts_end_the_process
with interrupts_end_the_process():
    class Field:
        def __set_name__(self, owner, name):
            signal.raise_signal(signal.SIGINT)
    class Settings:
        field = Field()
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (-signal.SIGINT, "")
