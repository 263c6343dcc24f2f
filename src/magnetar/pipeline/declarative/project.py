"""A project of Spark Declarative Pipelines on disk: `spark-pipeline.yml`, and the Python and SQL files that it names.

The fields are those of Spark's guide (Spark Declarative Pipelines Programming Guide, 4.1 and later).
"""

from __future__ import annotations

import glob
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from magnetar.base.errors import InvalidArgumentError, StartupError
from magnetar.pipeline.errors import PipelineError

SPEC_NAMES: Final = ("spark-pipeline.yaml", "spark-pipeline.yml")
_FIELDS: Final = ("name", "storage", "catalog", "database", "schema", "configuration", "libraries")
SESSION_CATALOG: Final = "spark_catalog"


class ProjectError(PipelineError, InvalidArgumentError):
    """A project of declarative pipelines cannot be read or run as it is written."""

    slug = "declarative-project"


@dataclass(frozen=True)
class Project:
    """`root`: the directory of the spec, which globs are relative to. `storage`: a directory on this machine."""

    name: str
    root: Path
    storage: Path
    database: str | None = None
    configuration: Mapping[str, str] = field(default_factory=dict)
    includes: tuple[str, ...] = ()

    def files(self) -> list[Path]:
        """The Python and SQL files of the globs, each once, in the order of the globs and of their names. ProjectError."""
        found: dict[Path, None] = {}
        for include in self.includes:
            for path in sorted(self.root.glob(include)):
                if not path.is_file() or "__pycache__" in path.parts:
                    continue
                if path.suffix not in (".py", ".sql"):
                    raise ProjectError(
                        f"{path}: a pipeline is made of .py and .sql files; move this one out of {include}"
                    )
                found[path] = None
        return list(found)


def find_spec(start: Path) -> Path:
    """The spec file of a directory, or of the nearest one above it. ProjectError."""
    for directory in (start.resolve(), *start.resolve().parents):
        found = [directory / name for name in SPEC_NAMES if (directory / name).is_file()]
        if len(found) > 1:
            raise ProjectError(f"{directory} has {' and '.join(SPEC_NAMES)}; name one with --spec")
        if found:
            return found[0]
    raise ProjectError(
        f"no {SPEC_NAMES[1]} in {start} or above it; name one with --spec, or make a project with `magnetar spark-pipelines init`"
    )


def load_project(spec: Path) -> Project:
    """Read a spec file. ProjectError says which field is wrong; StartupError when PyYAML is missing."""
    try:
        import yaml
    except ImportError as error:
        raise StartupError("PyYAML is not installed: pip install 'magnetar[spark]'") from error
    try:
        document = yaml.safe_load(spec.read_text(encoding="utf-8"))
    except OSError as error:
        raise ProjectError(f"{spec} cannot be read ({error.strerror}); name the project's spec with --spec") from error
    except yaml.YAMLError as error:
        raise ProjectError(f"{spec} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(document, dict):
        raise ProjectError(f"{spec} is not a mapping of fields; it needs name, storage and libraries")
    for name in document:
        if name not in _FIELDS:
            raise ProjectError(f"{spec}: unknown field {name!r}; there are {', '.join(_FIELDS)}")
    for name in ("name", "storage"):
        if not isinstance(document.get(name), str):
            raise ProjectError(f"{spec}: {name} is missing or not a text")
    if document.get("catalog", SESSION_CATALOG) != SESSION_CATALOG:
        raise ProjectError(
            f"{spec}: catalog {document['catalog']!r} is not kept here; leave catalog out, or run it with `spark-pipelines`"
        )
    return Project(
        name=document["name"],
        root=spec.parent.resolve(),
        storage=_storage(spec, document["storage"]),
        database=document.get("database", document.get("schema")),
        configuration=_configuration(spec, document.get("configuration") or {}),
        includes=tuple(_include(spec, entry) for entry in document.get("libraries") or []),
    )


def _storage(spec: Path, text: str) -> Path:
    path = text.removeprefix("file://")
    if "://" in path or not path.startswith("/"):
        raise ProjectError(
            f"{spec}: storage {text!r} is not a directory of this machine; give an absolute path or file:///DIRECTORY, or run the "
            "project with `spark-pipelines`"
        )
    return Path(path)


def _configuration(spec: Path, given: Any) -> dict[str, str]:
    if not isinstance(given, dict) or not all(isinstance(each, str) for pair in given.items() for each in pair):
        raise ProjectError(f"{spec}: configuration is a mapping of Spark's keys to texts; quote numbers and booleans")
    return dict(given)


def _include(spec: Path, entry: Any) -> str:
    """A path without wildcards, or a directory with all below it (`DIRECTORY/**`), as Spark takes them."""
    try:
        include = entry["glob"]["include"]
    except (TypeError, KeyError):
        raise ProjectError(f"{spec}: an entry of libraries is not {{glob: {{include: PATH}}}}: {entry!r}") from None
    if not glob.has_magic(include):
        return str(include)
    if include.endswith("/**") and not glob.has_magic(include[:-3]):
        return f"{include}/*"
    raise ProjectError(f"{spec}: glob {include!r} is neither a file nor a directory with /** behind it")
