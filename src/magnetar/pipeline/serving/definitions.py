"""DDL of a client: statements that change the pipeline while it runs, as its edited file does.

The statement is read and tried here over the newest epoch's catalog, so that what is wrong with it is told at once. The driver, which
is another process, then takes it between two epochs, and it is done when the rows of what it creates are there.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Final

from magnetar.base.clock import SystemClock
from magnetar.pipeline.errors import CatalogError, PipelineError, PlanRefusedError, SqlError
from magnetar.pipeline.home import local_side
from magnetar.pipeline.serving.engine import Engine
from magnetar.pipeline.serving.sql.translate import QueryError
from magnetar.pipeline.sql.catalog import Catalog
from magnetar.pipeline.sql.changes import applied, changes
from magnetar.pipeline.sql.parser import parse_one
from magnetar.pipeline.sql.statements import (
    AlterOptions,
    Comment,
    CreateFunction,
    CreateIndex,
    CreateSink,
    CreateSource,
    CreateView,
    Drop,
    Rename,
    SetParallelism,
    Statement,
)
from magnetar.pipeline.views.control import requests as control
from magnetar.pipeline.views.control.driver_lock import holder

LOOK_S: Final = 0.02

_CHANGES: Final = (
    CreateSource,
    CreateView,
    CreateSink,
    CreateFunction,
    CreateIndex,
    Comment,
    Drop,
    Rename,
    AlterOptions,
    SetParallelism,
)
_CREATES: Final = (CreateSource, CreateView, CreateSink)
_CONNECTORS: Final = ("pulsar", "magnetar")

MayChange = Callable[[bool], bool]
"""Whether the client may change the pipeline; of what runs code or reaches elsewhere than a broker, when it is told True."""


class Definitions:
    """Of one client's session."""

    def __init__(self, engine: Engine, may_change: MayChange) -> None:
        self._engine = engine
        self._may_change = may_change
        self._clock = SystemClock()

    async def change(self, text: str, cancelled: Callable[[], bool], limit_s: float) -> str:
        """Have the driver take a statement; the tag. Raises QueryError, with 57014 when it is not done in time."""
        loop = asyncio.get_running_loop()
        tag = await loop.run_in_executor(None, lambda: self._checked(text))
        if not tag.changes:
            return tag.text
        files = self._engine.views.files
        directory = local_side(files.root_url)
        number = control.ask(directory, self._clock, "apply", text=text)
        began_s = loop.time()
        while (answer := control.take_answer(directory, number)) is None:
            if cancelled() or loop.time() - began_s > limit_s or holder(directory) is None:
                control.withdraw(directory, number)
                raise QueryError(
                    "57014",
                    "the pipeline has not taken the statement yet; whether it does, SHOW tells",
                    "a new view is there when the rows that its sources have are in it, which may take longer than a statement's timeout",
                )
            await asyncio.sleep(LOOK_S)
        if not answer.get("done"):
            raise QueryError("55000", str(answer.get("error") or "the pipeline refuses it"))
        while self._engine.snapshot().manifest.number < answer["manifest"]:
            if cancelled() or loop.time() - began_s > limit_s:
                raise QueryError("57014", "it is done, and this server has not read the newest manifest yet")
            await asyncio.sleep(LOOK_S)
        return tag.text

    def _checked(self, text: str) -> Tag:
        """Raises QueryError for what cannot be done."""
        try:
            statement = parse_one(text)
        except SqlError as error:
            raise QueryError("42601", str(error)) from None
        if not isinstance(statement, _CHANGES):
            raise QueryError("0A000", f"{text.split()[0].upper()} is not supported")
        self._check_right(statement)
        if holder(local_side(self._engine.views.files.root_url)) is None:
            raise QueryError(
                "55000",
                f"pipeline {self._engine.database} does not run on this machine, and only a running pipeline is changed by a client",
                "magnetar pipeline run FILE; or write the statement into the file",
            )
        known = Catalog.from_plain(list(self._engine.snapshot().manifest.views.get("catalog", [])))
        found = _there(known, statement)
        if found is not None:
            return found
        try:
            plan = changes(known, applied(known, [statement]), [statement])
        except PlanRefusedError as error:
            raise QueryError("0A000", str(error)) from None
        except SqlError as error:
            raise QueryError("42601", str(error)) from None
        except CatalogError as error:
            code = "2BP01" if isinstance(statement, Drop) and "CASCADE" in str(error) else "42704"
            raise QueryError(code, str(error)) from None
        except PipelineError as error:
            raise QueryError("55000", str(error)) from None
        lost = [change for change in plan if not change.keeps_state]
        if lost:
            raise QueryError(
                "55000",
                f"{', '.join(f'{each.name} ({each.why})' for each in lost)} would be built again from the topics",
                "edit the pipeline's file and run it again with --yes, or give the new one another name",
            )
        return Tag(_tag(text))

    def _check_right(self, statement: Statement) -> None:
        reads_file = isinstance(statement, CreateSink | CreateSource) and any(
            name.lower() == "schema.location"
            for options in (statement.options, {} if statement.format is None else statement.format.options)
            for name in options
        )
        reaches = (
            (isinstance(statement, CreateFunction) and statement.language == "python")
            or reads_file
            or (
                isinstance(statement, CreateSink | CreateSource)
                and str(statement.options.get("connector", "pulsar")).lower() not in _CONNECTORS
            )
        )
        if not self._may_change(reaches):
            what = (
                "define functions in Python, sinks elsewhere than at a broker, or what reads a descriptor file"
                if reaches
                else "change the pipeline"
            )
            raise QueryError(
                "42501",
                f"permission denied: you may not {what}",
                "superusers may, and the roles in viewOwnerRoles; others write it into the pipeline's file",
            )
        given = statement.options if isinstance(statement, CreateSource | CreateSink | AlterOptions) else None
        if given is not None and given != given.redacted():
            raise QueryError(
                "0A000",
                "a credential is not taken from a client, since nothing would have it at the next start",
                "write the statement into the pipeline's file",
            )


class Tag:
    """What a client is told. Not `changes`: there is nothing to do."""

    def __init__(self, text: str, *, changes: bool = True) -> None:
        self.text = text
        self.changes = changes


def _there(known: Catalog, statement: Statement) -> Tag | None:
    """Of what exists already, or is not there to be dropped. Raises QueryError unless IF [NOT] EXISTS is written."""
    names = {name.lower() for name in known.entries}
    if isinstance(statement, CreateFunction):
        taken, code, what = statement.name.lower() in known.functions, "42723", "function"
    elif isinstance(statement, CreateIndex):
        taken, code, what = statement.name.lower() in known.indexes, "42P07", "relation"
    elif isinstance(statement, _CREATES):
        taken, code, what = statement.name.lower() in names, "42P07", "relation"
    else:
        if isinstance(statement, Drop) and statement.if_exists:
            there = {"FUNCTION": known.functions, "INDEX": known.indexes}.get(statement.kind, names)
            return None if statement.name.lower() in there else Tag(f"DROP {statement.kind}", changes=False)
        return None
    if not taken:
        return None
    if statement.if_not_exists:
        kinds = {CreateFunction: "FUNCTION", CreateIndex: "INDEX"}
        kind = kinds.get(type(statement)) or known.find(statement.name).kind
        return Tag(f"CREATE {kind}", changes=False)
    raise QueryError(
        code,
        f'{what} "{statement.name}" already exists',
        "write IF NOT EXISTS, or DROP it first; options change by ALTER ... SET",
    )


def _tag(text: str) -> str:
    words = re.sub(r"--[^\n]*|/\*.*?\*/", " ", text, flags=re.DOTALL).upper().split()
    if words[:1] == ["COMMENT"]:
        return "COMMENT"
    return " ".join(words[:3] if words[1:2] == ["MATERIALIZED"] else words[:2])
