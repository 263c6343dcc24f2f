"""Scalable topics that nobody controls, with changes that a broker began before it died: somebody ends them, even if no client asks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from magnetar.base.errors import MagnetarError, MetadataError
from magnetar.base.tasks import REPORTED, TaskScope
from magnetar.broker.errors import ServiceNotReadyError, TopicNotFoundError
from magnetar.broker.naming import SCALABLE, TopicName
from magnetar.broker.scalable.controller import FINISH_FIRST_S, FINISH_MAX_S
from magnetar.broker.scalable.records import ScalableRecords
from magnetar.metadata import paths

logger = logging.getLogger(__name__)

Control = Callable[[TopicName], Awaitable[object]]
"""Sees that the topic has a controller, which ends what was begun when it takes over."""

STAND_AGAIN_MAX_S: Final = 8.0
"""The longest pause between attempts to take a topic over."""


class TakeOvers:
    """Topics that this broker could not take over when their controller was gone, for want of bookies, say: it tries again after a while.

    Those who asked for the controller may be gone by then, and nobody else would end the change that it had begun.
    """

    def __init__(self, control: Control, scope: TaskScope) -> None:
        self._control = control
        self._scope = scope
        self._due: set[TopicName] = set()
        self._closed = False

    def __contains__(self, topic: TopicName) -> bool:
        return topic in self._due

    def again(self, topic: TopicName) -> None:
        """The first attempt comes after FINISH_FIRST_S."""
        if topic not in self._due and not self._closed:
            self._due.add(topic)
            self._scope.spawn(self._try(topic), f"take {topic} over", REPORTED)

    def close(self) -> None:
        """This broker takes nothing over any more."""
        self._closed = True

    def check_open(self, topic: TopicName) -> None:
        """Raises ServiceNotReadyError while this broker shuts down: it would take back what it has just given up."""
        if self._closed:
            raise ServiceNotReadyError(f"this broker is shutting down and does not take {topic} over; try again")

    async def _try(self, topic: TopicName) -> None:
        pause_s = FINISH_FIRST_S
        try:
            while True:
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, STAND_AGAIN_MAX_S)
                if self._closed:
                    return
                try:
                    await self._control(topic)
                    return
                except TopicNotFoundError:
                    return
                except MagnetarError as error:
                    logger.warning("not taken over yet topic=%s error=%s", topic, error)
        finally:
            self._due.discard(topic)


async def end_what_was_begun(records: ScalableRecords, control: Control) -> None:
    """Until every topic has been looked at, however often the metadata service cannot be reached."""
    pause_s = FINISH_FIRST_S
    while not await _looked_at_all(records, control):
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, FINISH_MAX_S)


async def _looked_at_all(records: ScalableRecords, control: Control) -> bool:
    """False if a topic could not be looked at; the others have been."""
    metadata, root = records.metadata, paths.SCALABLE_TOPICS_PATH
    complete = True
    try:
        for tenant in await metadata.children(root):
            for namespace in await metadata.children(f"{root}/{tenant}"):
                for name in await metadata.children(f"{root}/{tenant}/{namespace}"):
                    topic = TopicName(SCALABLE, tenant, namespace, paths.decode(name))
                    complete = await _looked_at(topic, records, control) and complete
    except MetadataError as error:
        logger.info("changes of scalable topics not looked for yet error=%s", error)
        return False
    return complete


async def _looked_at(topic: TopicName, records: ScalableRecords, control: Control) -> bool:
    try:
        record = await records.get(topic)
        if record is None or record.pending is None:
            return True
        await control(topic)
        record = await records.get(topic)
    except MagnetarError as error:
        logger.info("change not looked for yet topic=%s error=%s", topic, error)
        return False
    return (
        record is None or record.pending is None
    )  # else its controller may be one that is gone, whose session has not ended
