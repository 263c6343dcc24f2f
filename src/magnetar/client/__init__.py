"""Callers of other servers: HTTP (`async_http`, `blocking_http`), a small asyncio client over `wire/pulsar`, and on it `scalable`.

The small client (`client.RemoteClient`) does what the official one cannot: it sends entries on as they are stored, markers included.
Nothing comes back by itself: a producer whose connection ended is closed; its owner opens another. `scalable` is for applications:
producers and consumers of Pulsar 5's scalable topics, which do come back.
"""
