"""A real ZooKeeper for tests: started once, killed, paused and restarted as a test likes."""

from __future__ import annotations

from magnetar.metadata.zookeeper_process import ZooKeeperProcess, four_letters

__all__ = ["ZooKeeperProcess", "four_letters"]
