"""Why a replicator cannot work now. It tries again by itself."""

from __future__ import annotations

from magnetar.base.errors import ClientError


class ClusterUnknownError(ClientError):
    """The cluster is not registered here, or its record lacks what is needed to reach it."""

    slug = "cluster-unknown"


class TopicMismatchError(ClientError):
    """The topic is partitioned here and not there, or the other way round."""

    slug = "topic-mismatch"


class EntryTooLargeError(ClientError):
    """The other cluster takes no message of that size."""

    slug = "entry-too-large"
