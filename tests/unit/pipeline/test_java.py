"""The archive of Spark's classes: where it lies, when it is used, and what is left when making it fails. Making one: tests/integration."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from magnetar.base.java import find_java
from magnetar.pipeline import java as spark_java
from magnetar.pipeline.java import VARIABLE, archive_options, archive_path, make_in_background


@pytest.fixture
def java(tmp_path: Path) -> Path:
    found = tmp_path / "bin" / "java"
    found.parent.mkdir()
    found.write_text("#!/bin/sh\n")
    return found


def test_it_lies_below_the_home_or_where_it_is_said(java: Path, tmp_path: Path) -> None:
    home = archive_path(java, {"MAGNETAR_HOME": str(tmp_path / "home")})
    elsewhere = archive_path(java, {VARIABLE: str(tmp_path / "there"), "MAGNETAR_HOME": str(tmp_path / "home")})
    assert home is not None
    assert elsewhere is not None
    assert home.parent == tmp_path / "home" / "cache"
    assert elsewhere == tmp_path / "there" / home.name
    assert archive_path(java, {VARIABLE: "off"}) is None


def test_another_java_and_other_jars_have_another(java: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jars = [tmp_path / f"{name}.jar" for name in "ab"]
    for jar in jars:
        jar.write_bytes(b"x")
    monkeypatch.setattr(spark_java, "_jars", lambda: jars)
    names = [archive_path(java, {})]
    jars[1].write_bytes(b"xy")
    names.append(archive_path(java, {}))
    java.write_text("#!/bin/sh\n# updated\n")
    names.append(archive_path(java, {}))
    assert len(set(names)) == 3
    jars.clear()  # Spark is not installed
    assert archive_path(java, {}) is None


def test_it_is_used_where_it_is_there(java: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    path = archive_path(java)
    assert path is not None
    assert archive_options(java) == ""
    path.write_bytes(b"")
    os.utime(path, (0, 0))
    assert f"-XX:SharedArchiveFile={path} " in archive_options(java)
    assert path.stat().st_mtime > 0  # it counts as in use
    assert make_in_background(java) is None
    monkeypatch.setenv(VARIABLE, "off")
    assert archive_options(java) == ""


@pytest.mark.parametrize("name", ["with space", "quo'te"])
def test_a_directory_that_scripts_would_take_apart_has_none(
    java: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / name))
    path = archive_path(java)
    assert path is not None
    path.parent.mkdir()
    path.write_bytes(b"")
    assert archive_options(java) == ""
    path.unlink()
    assert make_in_background(java) is None


def test_a_home_that_cannot_be_written_to_costs_nothing_but_time(
    java: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv(VARIABLE, str(tmp_path / "file" / "below"))
    assert make_in_background(java) is None


def test_java_that_fails_leaves_nothing(java: Path, tmp_path: Path) -> None:
    """Spark does not start with this Java."""
    java.write_text("#!/bin/sh\nexit 1\n")
    java.chmod(0o755)
    path = tmp_path / "cache" / "spark-classes-0.jsa"
    done = subprocess.run(
        [sys.executable, "-m", "magnetar.pipeline.java", str(path)],
        env=os.environ | {"JAVA_HOME": str(java.parent.parent)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "JAVA_GATEWAY_EXITED" in done.stderr
    assert list(path.parent.iterdir()) == []


@pytest.mark.long
@pytest.mark.timeout(600)
def test_it_is_made_and_mapped_by_the_next_java(tmp_path: Path) -> None:
    environment = os.environ | {VARIABLE: str(tmp_path / "cache")}
    made = subprocess.run([sys.executable, "-m", "magnetar.pipeline.java"], env=environment, timeout=500, check=False)
    assert made.returncode == 0
    path = archive_path(find_java().resolve(), environment)
    assert path is not None
    assert list(path.parent.iterdir()) == [path]
    look = (
        "from magnetar.pipeline.session import build_session\n"
        "java = build_session().sparkContext._gateway.proc.pid\n"
        "print(open(f'/proc/{java}/maps').read())"
    )
    maps = subprocess.run(
        [sys.executable, "-c", look], env=environment, capture_output=True, text=True, timeout=120, check=True
    )
    assert str(path) in maps.stdout
