"""Who may produce at the same time (PIP-68): Shared, Exclusive, WaitForExclusive, ExclusiveWithFencing.

A decision core over the producers of one topic: it registers, queues and names whom to disconnect, and does nothing itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from magnetar.broker.errors import ProducerBusyError, ProducerFencedError
from magnetar.broker.topics.producer import AccessMode, Producer


@dataclass(slots=True)
class Admission:
    """The consequences of a registration or a departure."""

    ready: list[Producer] = field(default_factory=list)
    """Producers that may send from now on."""
    fenced: list[Producer] = field(default_factory=list)
    """Producers to disconnect."""


class Producers:
    """The registered producers of one topic by name, and those that wait for exclusive access in order of arrival.

    Other clusters' replicators, one a cluster, are apart from them: they neither count nor prevent exclusive access,
    which is a matter of this cluster's clients.
    """

    def __init__(self, producers_max: int = 0) -> None:
        self.producers_max = producers_max
        self._by_name: dict[str, Producer] = {}
        self._remote: dict[str, Producer] = {}
        self._waiting: list[Producer] = []
        self._exclusive: Producer | None = None

    def __len__(self) -> int:
        return len(self._by_name)

    @property
    def all(self) -> list[Producer]:
        """Producers that may send, in order of registration."""
        return list(self._by_name.values())

    @property
    def remote(self) -> list[Producer]:
        """Other clusters' replicators."""
        return list(self._remote.values())

    @property
    def exclusive(self) -> Producer | None:
        """The producer that has the topic for itself."""
        return self._exclusive

    @property
    def waiting(self) -> list[Producer]:
        return list(self._waiting)

    def namesake(self, producer: Producer) -> Producer | None:
        """The live producer of the same name, or the replicator of the same cluster: a newcomer either replaces it or is refused."""
        if producer.source_cluster is not None:
            return self._remote.get(producer.source_cluster)
        return self._by_name.get(producer.name)

    def add(self, producer: Producer, topic_epoch: int) -> Admission:
        """Register a newcomer whose name is free. `topic_epoch` is the topic's present one.

        Raises ProducerBusyError or ProducerFencedError.
        """
        assert self.namesake(producer) is None, "the caller settles name clashes first"
        if producer.source_cluster is not None:
            self._remote[producer.source_cluster] = producer
            return Admission(ready=[producer])
        if producer.topic_epoch is not None and producer.topic_epoch < topic_epoch:
            raise ProducerFencedError(
                f"producer epoch {producer.topic_epoch} is older than the topic's, {topic_epoch}: another producer took over"
            )
        if producer.access_mode is AccessMode.SHARED:
            return self._add_shared(producer)
        if producer.access_mode is AccessMode.EXCLUSIVE:
            if self._by_name:
                raise ProducerFencedError("the topic has other producers, so it cannot be taken exclusively")
            return self._take(producer)
        if producer.access_mode is AccessMode.WAIT_FOR_EXCLUSIVE:
            if self._by_name or self._waiting:
                self._waiting.append(producer)
                return Admission()
            return self._take(producer)
        fenced = [*self._by_name.values(), *self._waiting]
        self._by_name.clear()
        self._waiting.clear()
        admission = self._take(producer)
        admission.fenced = fenced
        return admission

    def remove(self, producer: Producer) -> Admission:
        """A producer left. The first waiting one takes its place once the topic is empty."""
        if producer.source_cluster is not None and self._remote.get(producer.source_cluster) is producer:
            del self._remote[producer.source_cluster]
        if producer in self._waiting:
            self._waiting.remove(producer)
        if self._by_name.get(producer.name) is not producer:
            return Admission()
        del self._by_name[producer.name]
        if self._exclusive is producer:
            self._exclusive = None
        if self._waiting and not self._by_name:
            return self._take(self._waiting.pop(0))
        return Admission()

    def _add_shared(self, producer: Producer) -> Admission:
        if self._exclusive is not None:
            raise ProducerBusyError(f"the topic has an exclusive producer: {self._exclusive.name}")
        if self._waiting:
            raise ProducerBusyError("a producer waits for exclusive access to the topic")
        if self.producers_max and len(self._by_name) >= self.producers_max:
            raise ProducerBusyError(f"Topic reached max producers limit {self.producers_max}")
        self._by_name[producer.name] = producer
        return Admission(ready=[producer])

    def _take(self, producer: Producer) -> Admission:
        self._by_name[producer.name] = producer
        self._exclusive = producer
        return Admission(ready=[producer])

    def validate(self) -> None:
        """An exclusive producer is alone; nobody waits for an empty topic."""
        if self._exclusive is not None:
            assert list(self._by_name.values()) == [self._exclusive]
        assert not self._waiting or self._by_name
