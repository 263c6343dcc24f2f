"""Where pipelines live: a directory of their own below `$MAGNETAR_HOME/pipelines`, unless told otherwise."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from zlib import crc32

from magnetar.base.errors import InvalidArgumentError

HOME_VARIABLE: Final = "MAGNETAR_HOME"
DEFAULT_HOME: Final = "~/.magnetar"
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")


def pipelines_directory(environment: Mapping[str, str] = os.environ) -> Path:
    """The directory of all pipelines by name."""
    return Path(environment.get(HOME_VARIABLE) or DEFAULT_HOME).expanduser() / "pipelines"


def check_name(name: str) -> str:
    """The name itself. InvalidArgumentError when it could not be a directory's name everywhere."""
    if not _NAME.fullmatch(name):
        raise InvalidArgumentError(
            f"{name!r} is not a pipeline name: take 1 to 100 letters, digits, '.', '_' and '-', the first a letter or digit"
        )
    return name


def pipeline_directory(name_or_directory: str, environment: Mapping[str, str] = os.environ) -> str:
    """A name's directory below the home; what has a slash is a directory or an fsspec URL already. InvalidArgumentError."""
    if "/" in name_or_directory:
        return os.path.expanduser(name_or_directory) if "://" not in name_or_directory else name_or_directory
    return str(pipelines_directory(environment) / check_name(name_or_directory))


def local_side(directory: str, environment: Mapping[str, str] = os.environ) -> Path:
    """Where the lock, the status and the requests of a pipeline lie on this machine: its directory, or for one that lies elsewhere a
    directory of its own below the home."""
    if "://" not in directory:
        return Path(directory).expanduser().absolute()
    if directory.startswith("file://"):
        return Path(directory.removeprefix("file://")).absolute()
    label = re.sub(r"[^A-Za-z0-9._-]+", "-", directory.rstrip("/").rpartition("/")[2]) or "pipeline"
    home = Path(environment.get(HOME_VARIABLE) or DEFAULT_HOME).expanduser()
    return home / "remote" / f"{label}-{crc32(directory.rstrip('/').encode()):08x}"


MANIFESTS: Final = "manifests"
"""The directory that every pipeline has once a driver has begun it."""


@dataclass(frozen=True, slots=True)
class Place:
    """A pipeline's name, where it lives, and where its files of this machine lie."""

    name: str
    directory: str
    local: Path


def place_of(name_or_directory: str) -> Place:
    """InvalidArgumentError for what is neither a name nor a directory."""
    directory = pipeline_directory(name_or_directory)
    return Place(directory.rstrip("/").rpartition("/")[2], directory, local_side(directory))


def names() -> list[str]:
    """Of the pipelines below the home."""
    root = pipelines_directory()
    if not root.is_dir():
        return []
    return sorted(path.name for path in root.iterdir() if is_pipeline(path))


def is_pipeline(path: Path) -> bool:
    """Whether a directory has manifests, or at least a driver that began."""
    return (path / MANIFESTS).is_dir() or (path / "status.json").is_file()
