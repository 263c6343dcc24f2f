"""What can go wrong with a cluster on this machine; every text names the fix."""

from __future__ import annotations

from magnetar.base.errors import MagnetarError


class ClusterError(MagnetarError):
    """A cluster command cannot do what it was asked to."""

    slug = "cluster"
