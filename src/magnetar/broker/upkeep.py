"""Periodic jobs of a broker: expiry, trimming, quotas, compactions, deletion of what nobody uses, sampled rates."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial

from magnetar.base.clock import Clock
from magnetar.base.errors import MagnetarError
from magnetar.base.tasks import TaskScope, in_turns
from magnetar.broker.config import BrokerConfig
from magnetar.broker.explain.watch import StandingWatch
from magnetar.broker.topics.persistent import PersistentTopic
from magnetar.broker.topics.registry import TopicRegistry
from magnetar.broker.topics.upkeep import TopicUpkeep

STATS_INTERVAL_S = 5.0
"""Rates are means over so long."""

RELEASE_INTERVAL_S = 5.0
"""How often it is looked whether more topics are in memory than are to be kept there."""

logger = logging.getLogger(__name__)


class Upkeep:
    """Runs one loop per job. A failure of a job for one topic is logged, and the job continues with the next."""

    def __init__(self, topics: TopicRegistry, config: BrokerConfig, clock: Clock) -> None:
        self._topics = topics
        self._config = config
        self._clock = clock
        self._watch = StandingWatch(clock)

    def start(self, scope: TaskScope) -> None:
        config = self._config
        scope.supervise(
            partial(
                self._every, (config.settings.message_expiry_check_interval_minutes * 60), TopicUpkeep.expire_messages
            ),
            "expiry",
        )
        scope.supervise(partial(self._every, config.settings.retention_check_interval_s, TopicUpkeep.trim), "retention")
        if config.settings.backlog_quota_check_enabled:
            quota_s = config.settings.backlog_quota_check_interval_s
            scope.supervise(partial(self._every, quota_s, TopicUpkeep.check_backlog_quota), "quota")
        compaction_s = config.settings.compaction_monitor_interval_s
        scope.supervise(partial(self._every, compaction_s, TopicUpkeep.compact_if_due), "compaction")
        expiry_s = config.settings.subscription_expiry_check_interval_minutes * 60
        scope.supervise(partial(self._every, expiry_s, TopicUpkeep.expire_subscriptions), "subscription expiry")
        snapshot_s = config.settings.broker_deduplication_snapshot_frequency_s
        scope.supervise(partial(self._every, snapshot_s, TopicUpkeep.snapshot_deduplication), "deduplication snapshots")
        scope.supervise(self._delete_abandoned, "inactive topics")
        scope.supervise(self._release_unneeded, "unused topics")
        scope.supervise(self._sample_rates, "rates")

    async def _every(self, interval_s: float, job: Callable[[TopicUpkeep], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(interval_s)
            async for topic in in_turns(self._topics.loaded):
                if isinstance(topic, PersistentTopic):
                    await self._run(topic, job)

    async def _run(self, topic: PersistentTopic, job: Callable[[TopicUpkeep], Awaitable[None]]) -> None:
        try:
            await job(topic.upkeep)
        except MagnetarError as error:
            logger.warning("upkeep failed topic=%s job=%s error=%s", topic.name, job.__name__, error)
        except Exception:  # a bug of ours in one topic must not stop the job for the other topics
            logger.exception("upkeep failed topic=%s job=%s", topic.name, job.__name__)

    async def _delete_abandoned(self) -> None:
        while True:
            await asyncio.sleep(self._config.settings.broker_delete_inactive_topics_frequency_s)
            await self._topics.delete_abandoned(self._clock.monotonic_s())

    async def _release_unneeded(self) -> None:
        while True:
            await asyncio.sleep(RELEASE_INTERVAL_S)
            await self._topics.release_unneeded()

    async def _sample_rates(self) -> None:
        while True:
            await asyncio.sleep(STATS_INTERVAL_S)
            now_s = self._clock.monotonic_s()
            self._watch.begin_round()
            async for topic in in_turns(self._topics.loaded):
                topic.sample_rates(now_s)
                if isinstance(topic, PersistentTopic):
                    self._watch.look(topic)
