"""Kills a server from within between two steps of a split, merge or migration: the product has no hook for it, its functions are wrapped.

`environment(directory, step)` goes to a `ServerProcess`; the step is the number of calls after which the process dies, in the order in
which the controller makes them: the intent, each child, each parent's end, what is left of a classic topic, the new layout.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
STEPS: Final = 5
"""Of a split into two children, and of a merge of two parents."""


MIGRATION_STEPS: Final = 7
"""Of two partitions."""


def environment(directory: Path, step: int) -> dict[str, str]:
    """For a server that dies after this step of its first change."""
    directory.mkdir(exist_ok=True)
    line = f"from tests.support.scalable_faults import install\ninstall({step})\n"
    (directory / "sitecustomize.py").write_text(line)
    return {"PYTHONPATH": f"{directory}{os.pathsep}{ROOT}"}


def install(step: int) -> None:
    """In the server's process, before anything is imported there."""
    from magnetar.broker import service
    from magnetar.broker.scalable.controller import TopicController
    from magnetar.broker.scalable.migration import Migrations
    from magnetar.broker.scalable.records import ScalableRecords
    from magnetar.broker.scalable.segments import Segments

    counted: list[str] = []
    changing: list[bool] = []

    def wrapped(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        async def call(*args: Any) -> Any:
            answer = await function(*args)
            if changing:
                counted.append(name)
                if len(counted) == step:
                    os.kill(os.getpid(), signal.SIGKILL)
            return answer

        return call

    async def change(self: Any, *args: Any) -> Any:
        changing.append(True)
        return await begin(self, *args)

    async def migrate(self: Any, *args: Any) -> Any:
        changing.append(True)
        ScalableRecords.create = wrapped("record", ScalableRecords.create)  # type: ignore[method-assign]
        return await begin_migration(self, *args)

    begin_migration = Migrations.migrate
    Migrations.migrate = migrate  # type: ignore[method-assign]
    service.retire_classic = wrapped("retire", service.retire_classic)
    begin = TopicController.change
    TopicController.change = change  # type: ignore[method-assign]
    ScalableRecords.update = wrapped("update", ScalableRecords.update)  # type: ignore[method-assign]
    for name in ("create", "terminate"):
        setattr(Segments, name, wrapped(name, getattr(Segments, name)))
