"""Changes of scalable topics that a broker began before it died: whoever starts next sees that somebody ends them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from magnetar.base.errors import MagnetarError, MetadataError
from magnetar.broker.naming import SCALABLE, TopicName
from magnetar.broker.scalable.controller import FINISH_FIRST_S, FINISH_MAX_S
from magnetar.broker.scalable.records import ScalableRecords
from magnetar.metadata import paths

logger = logging.getLogger(__name__)

Control = Callable[[TopicName], Awaitable[object]]
"""Sees that the topic has a controller, which ends what was begun when it takes over."""


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
        if record is not None and record.pending is not None:
            await control(topic)
    except MagnetarError as error:
        logger.info("change not looked for yet topic=%s error=%s", topic, error)
        return False
    return True
