"""Geo-replication, the sending side: a topic's `replicator_set`, a `replicator` for each other cluster with one `link` at a time, and what
becomes of an entry (`outgoing`). `service` is what the topics of a broker share. The receiving side is in `topics`; subscriptions that
move between clusters are in `replication`.
"""
