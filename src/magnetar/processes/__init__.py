"""Composition roots of the cluster's processes, and the parts that `magnetar standalone` shares with them."""
