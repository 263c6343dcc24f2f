"""The active consumer of an Exclusive or Failover subscription: who it is, when it changes, who is told."""

from __future__ import annotations

from collections.abc import Sequence

from magnetar.broker.dispatch.ports import Scheduler, Timer
from magnetar.broker.dispatch.pump import Pump
from magnetar.broker.dispatch.single_active import SingleActiveDispatcher, choose_active, partition_index
from magnetar.broker.subscriptions.consumer import Consumer
from magnetar.broker.subscriptions.types import SubscriptionType


class ActiveConsumer:
    """Moves the dispatcher from one consumer to the next.

    A replaced consumer that is still connected may have acknowledgements on the way: the switch waits `delay_ms` for them,
    so that they are not delivered twice. When it has left, the next one is served at once.
    """

    __slots__ = ("_delay_ms", "_dispatcher", "_partition", "_pump", "_scheduler", "_telling", "_timer", "chosen")

    def __init__(
        self, dispatcher: SingleActiveDispatcher, pump: Pump, scheduler: Scheduler, topic_name: str, delay_ms: int
    ) -> None:
        self._dispatcher = dispatcher
        self._pump = pump
        self._scheduler = scheduler
        self._partition = partition_index(topic_name)
        self._delay_ms = delay_ms
        self._timer: Timer | None = None
        self._telling = False
        self.chosen: Consumer | None = None

    def consumers_changed(self, consumers: Sequence[Consumer]) -> None:
        """Somebody joined or left."""
        previous = self.chosen
        chosen = self.chosen = choose_active(consumers, self._partition)
        if chosen is not previous:
            self._dispatcher.active = None
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            if self._delay_ms > 0 and previous is not None and previous in consumers:
                self._timer = self._scheduler.call_later(self._delay_ms / 1000, self._activate)
            else:
                self._activate()
        for consumer in consumers:
            consumer.is_active = consumer is chosen
        self._tell_soon(consumers)

    def _activate(self) -> None:
        self._timer = None
        self._dispatcher.active = self.chosen
        self._pump.rewind()

    def close(self) -> None:
        """No switch and no message about one after this."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._dispatcher.active = None

    def _tell_soon(self, consumers: Sequence[Consumer]) -> None:
        """After the caller has answered SUBSCRIBE: a client does not expect news about a consumer before that."""
        if self._telling:
            return
        self._telling = True

        def tell() -> None:
            self._telling = False
            for consumer in list(consumers):
                if consumer.type is SubscriptionType.Failover and consumer.notified_active != consumer.is_active:
                    consumer.notified_active = consumer.is_active
                    consumer.channel.active_changed(consumer.is_active)

        self._scheduler.call_soon(tell)
