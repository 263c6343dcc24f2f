"""A file that defines a pipeline, as a Pipeline: SQL statements, or a Python script that makes one."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from magnetar.base.errors import MagnetarError
from magnetar.cli.errors import CommandError
from magnetar.pipeline.home import check_name
from magnetar.pipeline.sql.catalog import Catalog
from magnetar.pipeline.sql.changes import applied
from magnetar.pipeline.sql.options import Options
from magnetar.pipeline.sql.parser import parse
from magnetar.pipeline.sql.printer import print_statement
from magnetar.pipeline.sql.statements import CreateSink, CreateSource, Statement
from magnetar.pipeline.views.pipeline import Pipeline

SCRIPT_NAME = "__magnetar__"
"""`__name__` of a script while it is loaded, so that `if __name__ == "__main__": pipeline.run()` does not run it."""


def load(path: Path, name: str | None, directory: str | None, defaults: Mapping[str, str]) -> Pipeline:
    """`defaults`: options of sources and sinks that do not say them. CommandError, SqlError, CatalogError."""
    if path.suffix == ".py":
        if name is not None or directory is not None or defaults:
            raise CommandError("a script says name, directory and addresses itself: Pipeline(name, directory)")
        return script(path)
    text = read_text(path)
    pipeline = Pipeline(check_name(name if name is not None else path.stem), directory)
    pipeline.sql(with_defaults(text, defaults) if defaults else text)
    return pipeline


def with_defaults(text: str, defaults: Mapping[str, str]) -> str:
    """The statements with these options where sources and sinks leave them out. Errors show the lines of `text`."""
    catalog_of_text(text)
    return "".join(
        f"{print_statement(_completed(statement, defaults), with_credentials=True)};\n" for statement in parse(text)
    )


def _completed(statement: Statement, defaults: Mapping[str, str]) -> Statement:
    if not isinstance(statement, CreateSource | CreateSink):
        return statement
    given = {option.lower() for option in statement.options}
    missing = {option: value for option, value in defaults.items() if option.lower() not in given}
    return replace(statement, options=Options({**statement.options, **missing}))


def script(path: Path) -> Pipeline:
    """The script's `pipeline`, or the only Pipeline among its names. CommandError."""
    if not path.is_file():
        raise CommandError(f"{path}: no such file")
    sys.path.insert(0, str(path.parent.absolute()))
    try:
        found = runpy.run_path(str(path), run_name=SCRIPT_NAME)
    except MagnetarError:
        raise
    except Exception as error:
        line = _line(error, str(path))
        raise CommandError(f"{path}{line}: {type(error).__name__}: {error}") from error
    made = {id(value): value for value in found.values() if isinstance(value, Pipeline)}
    named = found.get("pipeline")
    if isinstance(named, Pipeline):
        return named
    if len(made) != 1:
        raise CommandError(
            f"{path} makes {len(made)} pipelines; call the one to run `pipeline`: pipeline = Pipeline('name')"
        )
    return next(iter(made.values()))


def _line(error: BaseException, path: str) -> str:
    """Where in the script it happened, as `:12`."""
    trace, found = error.__traceback__, ""
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == path:
            found = f":{trace.tb_lineno}"
        trace = trace.tb_next
    return found


def catalog_of_text(text: str) -> Catalog:
    """After all statements of a file. CommandError, SqlError, CatalogError."""
    catalog = applied(Catalog(), parse(text))
    if not catalog.entries:
        raise CommandError(
            "there is no CREATE in it that would make a pipeline; ask for rows with `magnetar pipeline query`"
        )
    return catalog


def read_text(path: Path) -> str:
    """CommandError when it cannot be read as text."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise CommandError(f"{path} is not UTF-8 text: {error}") from error
