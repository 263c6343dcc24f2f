"""Every bound, with what happens when it is reached. Sizes in bytes, times in seconds, unless the name says otherwise."""

from __future__ import annotations

# ---- Connections
OPEN_FILES_RESERVED = 512
"""Descriptors kept from clients, for storage, metadata and the admin API: the connection that would take one of them is closed."""

COMMAND_BYTES_BEFORE_AUTH_MAX = 64 * 1024
"""Command part of a frame before CONNECT succeeded: the connection is closed before anything is allocated."""

COMMAND_BYTES_MAX = 1024 * 1024
"""Command part of a frame afterwards: the connection is closed. 1 MiB of the worst command parses in about 15 ms."""

FRAME_PADDING_BYTES = 10 * 1024
"""Room for command and metadata on top of maxMessageSize, as in Pulsar: a larger frame closes the connection."""

HANDSHAKE_TIMEOUT_S = 10.0
"""From accept to CONNECT: the connection is closed."""

CLOSE_TIMEOUT_S = 5.0
"""For a closed connection's last words to leave: what a peer does not read by then is dropped."""

PROBE_TIMEOUT_S = 2.0
"""PING to a client whose producer name another one wants: without any byte by then its connection is closed."""

KEEP_ALIVE_INTERVAL_S = 30.0
"""Silence before a PING; a second silent interval closes the connection."""

CONNECTION_OUTPUT_HIGH_BYTES = 1024 * 1024
"""Unsent output of one connection: its consumers are not sent more until it has drained to the low mark."""

CONNECTION_OUTPUT_LOW_BYTES = 256 * 1024
"""Unsent output at which a paused connection is served again."""

CONNECTION_OUTPUT_BYTES_MAX = 64 * 1024 * 1024
"""Unsent output of a client that never reads but keeps asking: the connection is closed."""

CONNECTION_PENDING_PUBLISH_BYTES_MAX = 32 * 1024 * 1024
"""Published bytes of one connection that wait for the disk: reading from the socket pauses until half are done.

The number of entries is bounded by the setting maxPendingPublishRequestsPerConnection in the same way."""

FRAMES_PER_CALLBACK_MAX = 512
"""Frames handled before other connections and timers get their turn; the rest follows by `call_soon`."""

FRAMES_PER_REQUEST = 16
"""What a control request counts for in the limit above: it is a task, and takes as long as so many messages."""

PRODUCERS_PER_CONNECTION_MAX = 10_000
"""More are answered with NotAllowedError."""

CONSUMERS_PER_CONNECTION_MAX = 10_000
"""More are answered with NotAllowedError."""

BATCH_MESSAGES_MAX = 100_000
"""Messages that one batch may hold: an entry that claims more is refused."""

PENDING_REQUESTS_PER_CONNECTION_MAX = 100
"""Control requests of one connection under way: reading pauses until half have ended.

Each is a task of some kilobytes that waits for the one metadata thread: this bounds how long others queue behind it."""

# ---- Consumers
PERMITS_MAX = 2**31 - 1
"""Permits of a consumer saturate here."""

ENTRIES_PER_DISPATCH_MAX = 100
"""Entries a subscription dispatches before the other subscriptions get their turn."""

BYTES_PER_READ_MAX = 5 * 1024 * 1024
"""Bytes one read of a cursor returns (at least one entry)."""

REDELIVER_IDS_MAX = 100_000
"""Message ids in one redelivery request that are looked at; the rest stays unacknowledged and comes with the next one."""

# ---- Names
TOPIC_NAME_BYTES_MAX = 4096
"""A longer topic name is refused as InvalidTopicName."""

SUBSCRIPTION_NAME_BYTES_MAX = 1024
"""A longer subscription name is refused."""

PARTITIONS_MAX = 100_000
"""More partitions for one topic are refused with 412."""

# ---- Storage
ENTRY_CACHE_BYTES_MAX = 64 * 1024 * 1024
"""Entries kept in memory for tailing readers, over all topics: the oldest go first; readers then read from the bookie."""

BOOKIE_WRITE_CACHE_BYTES_MAX = 64 * 1024 * 1024
"""Entries in each half of the bookie's write cache: a full half is flushed; while both are full adds wait."""

JOURNAL_PENDING_BYTES_MAX = 256 * 1024 * 1024
"""Bytes that wait for the journal: further adds are refused with ETOOMANYREQUESTS."""

# ---- Compaction
COMPACTION_KEY_MEMORY_BYTES_MAX = 256 * 1024 * 1024
"""For the keys of the one topic that is being compacted (others wait): above it the compaction fails and the topic stays as it was."""

COMPACTION_UNPACKED_BYTES_MAX = 64 * 1024 * 1024
"""A batch that unpacks to more is not looked into: compaction keeps it as it is."""

# ---- Bookie protocol
BOOKIE_FRAME_BYTES_MAX = 5 * 1024 * 1024 + 10 * 1024
"""Longest frame of the bookie protocol unless nettyMaxFrameSizeBytes says another: a longer one closes the connection."""

BOOKIE_OUTPUT_HIGH_BYTES = 4 * 1024 * 1024
"""Unsent answers of one connection to a bookie: no more of its requests are read until they have drained to a quarter."""

BOOKIE_READS_WAITING_MAX = 2_500
"""Reads of one connection that wait for others of it to be answered: further ones are refused with ETOOMANYREQUESTS."""

BOOKIE_READ_BYTES_UNDER_WAY_MAX = 16 * 1024 * 1024
"""What the reads of one connection that are under way may return, as far as that is known: others wait."""

BOOKIE_CLIENT_REQUESTS_MAX = 50_000
"""Requests to one bookie that are not answered: further ones fail at once with TOO_MANY_REQUESTS."""

BOOKIE_CLIENT_BYTES_MAX = 256 * 1024 * 1024
"""Bytes of adds to one bookie that are not answered: further ones fail at once with TOO_MANY_REQUESTS."""

BOOKIE_CLIENT_LATE_ANSWERS_MAX = 1_000
"""Requests of one connection whose time ran out and whose answers may still come: above it the connection is closed."""

# ---- Transactions
TRANSACTION_PARTICIPANTS_MAX = 200_000
"""Topics and subscriptions named by the open transactions of one coordinator: further ones are refused with NotAllowed."""

TRANSACTION_ABORTED_PER_TOPIC_MAX = 50_000
"""Aborted transactions whose messages a topic still stores: no further transaction may publish there until some were trimmed."""

TRANSACTION_PENDING_ACKS_MAX = 200_000
"""Acknowledgements of open transactions that one subscription holds: further ones are refused with NotAllowed."""
