"""Every bound, with what happens when it is reached. Sizes in bytes, times in seconds, unless the name says otherwise."""

from __future__ import annotations

# ---- Connections
OPEN_FILES_RESERVED = 512
"""Descriptors kept from clients, for storage and metadata: the connection that would take one of them is closed (at most half of all)."""

HTTP_CONNECTIONS_MAX = 2048
"""HTTP and HTTPS connections of a process, unless maxHttpServerConnections says another: above it a newcomer takes the place of a
connection without a request, or is closed if there is none."""

HTTP_CONNECTIONS_PART = 4
"""One in so many of the other descriptors is for HTTP connections, the rest for the binary protocol: neither takes the other's."""

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
"""Unsent output of one connection: its consumers are not sent more until it has drained to the low mark, and its control requests wait."""

CONNECTION_OUTPUT_LOW_BYTES = 256 * 1024
"""Unsent output at which a paused connection is served again."""

CONNECTION_OUTPUT_BYTES_MAX = 64 * 1024 * 1024
"""Unsent output of a client that never reads but keeps asking: the connection is closed."""

CONNECTION_PENDING_PUBLISH_BYTES_MAX = 32 * 1024 * 1024
"""Published bytes of one connection that wait for the disk: reading from the socket pauses until half are done.

The number of entries is bounded by the setting maxPendingPublishRequestsPerConnection in the same way."""

PUBLISHES_BESIDE_OTHERS_MIN = 64
"""Entries of one principal that may wait for the disk while others publish as well, however long they take."""

PUBLISHES_BESIDE_OTHERS_MAX = 10_000
"""The same on a disk that is slow but takes much at a time."""

PUBLISH_BYTES_BESIDE_OTHERS_MAX = 2 * 1024 * 1024
"""The same in bytes; one entry may have more."""

PUBLISH_QUEUE_BESIDE_OTHERS_S = 0.0005
"""Time that an entry may take above twice the shortest one before its principal may have fewer of them under way."""

PUBLISH_PERIOD_S = 5.0
"""How long a principal counts as one that publishes, and how often the shortest time of an entry is measured again."""

FRAMES_PER_CALLBACK_MAX = 512
"""Frames handled before other connections and timers get their turn; the rest follows by `call_soon`."""

FRAMES_TURN_S = 0.001
"""The same as a time, since frames differ: shared by the connections of one principal that have more frames than one turn takes."""

FRAMES_PER_LOOK_AT_CLOCK = 8
"""Frames handled between two looks at the clock."""

RUN_ENTRIES_MAX = 64
"""Frames of one producer or consumer in one read of its socket that are handled together; the next ones are another run. They count as so
many frames of the turn. Shared by the busy connections of one principal, down to `FRAMES_PER_LOOK_AT_CLOCK`."""

RUN_BYTES_MAX = 256 * 1024
"""Bytes of published entries that are handled together: the entry that reaches it is the last of its run."""

PRODUCERS_PER_CONNECTION_MAX = 10_000
"""More are answered with NotAllowedError."""

PRODUCERS_REMOVED_PER_TURN = 500
"""Producers of a lost connection that leave their topics at once; the others follow while the loop serves everybody else."""

CONSUMERS_PER_CONNECTION_MAX = 10_000
"""More are answered with NotAllowedError."""

BATCH_MESSAGES_MAX = 100_000
"""Messages that one batch may hold: an entry that claims more is refused."""

CHUNKS_MAX = 100_000
"""Chunks that one message may be sent in: a chunk that claims more is refused. Consumers reserve memory for as many as are claimed."""

MESSAGE_METADATA_BYTES_MAX = 1024 * 1024
"""Metadata of one entry (properties, keys): an entry with more is refused. It is parsed on the way in and again on the way out."""

PENDING_REQUESTS_PER_CONNECTION_MAX = 100
"""Control requests of one connection that wait or are under way: reading pauses until half have ended."""

REQUESTS_UNDER_WAY_PER_PRINCIPAL_MAX = 4
"""Control requests of one role (or address) under way: its others wait. Each is a task that uses the loop and the one metadata thread:
this bounds how long the requests of others queue behind them."""

REQUESTS_UNDER_WAY_MAX = 64
"""The same over all of them."""

REQUEST_HOLDS_PLACE_S = 0.05
"""A control request that takes longer waits for something else than the loop, such as another broker, and does not count above."""

REQUESTS_STARTED_PER_TURN = 1
"""Control requests started before the loop serves everybody else."""

REQUESTS_LOOKED_AT_PER_TURN = 256
"""Connections looked at in one turn for a request that may start."""

REQUESTS_LOOK_AGAIN_S = 0.02
"""How often connections are looked at whose requests wait for answers to be read."""

LARGE_ANSWER_BYTES = 1024 * 1024
"""Room in its connection's output that a request takes whose answer may be large, until the answer is there."""

SMALL_ANSWER_BYTES = 1024
"""The same of other requests."""

UNREAD_ANSWERS_BYTES_MAX = 64 * 1024 * 1024
"""Answers over all connections that clients have not read: a principal gets no further answers while it holds more of them than is free
of this, so that one alone takes half. At twice as much the connections that hold more than the average are closed. The memory is up to
twice what is counted: asyncio's write buffer keeps its allocation until half of it has been sent."""

UNREAD_ANSWERS_PER_PRINCIPAL_BYTES_MIN = 4 * 1024 * 1024
"""Answers that a principal may leave unread however much the others hold."""

UNREAD_ANSWERS_COUNTED_BYTES_MIN = 64 * 1024
"""What one connection leaves unread below this is not counted."""

# ---- Consumers
PERMITS_MAX = 2**31 - 1
"""Permits of a consumer saturate here."""

ENTRIES_PER_DISPATCH_MAX = 100
"""Entries read at once from a log by what is not a client: compaction, replication, recovery."""

ENTRIES_PER_TURN_MAX = 100
"""Entries that a subscription reads and sends to clients in one turn, which takes one to two milliseconds. Fewer cost more: each read is
handed to a thread and back."""

DISPATCH_TURN_S = 0.001
"""Subscriptions get turns for so long; then the loop serves everybody else, and those that wait come first in its next turn."""

BYTES_PER_READ_MAX = 5 * 1024 * 1024
"""Bytes one read of a cursor returns (at least one entry)."""

REDELIVER_IDS_MAX = 100_000
"""Message ids in one redelivery request that are looked at; the rest stays unacknowledged and comes with the next one."""

DISCARDED_IDS_MAX = 1_000
"""Message ids in one acknowledgement of damaged entries whose permits are given back; official clients send one at a time."""

# ---- Names
TOPIC_NAME_BYTES_MAX = 4096
"""A longer topic name is refused as InvalidTopicName."""

SUBSCRIPTION_NAME_BYTES_MAX = 1024
"""A longer subscription name is refused."""

BUNDLES_MAX = 4096
"""Bundles of a namespace: every one is a node in the metadata store. More are refused."""

PARTITIONS_MAX = 100_000
"""More partitions for one topic are refused with 412."""

# ---- Storage
ENTRY_CACHE_BYTES_MAX = 64 * 1024 * 1024
"""Entries kept in memory for tailing readers, over all topics: the oldest go first; readers then read from the bookie."""

KEPT_ENTRIES_OF_SUBSCRIPTION_BYTES_MAX = 8 * 1024 * 1024
"""Entries that Key_Shared has read and keeps in memory until their consumers can take them: the oldest go first and are read again."""

KEPT_ENTRIES_BYTES_MAX = 32 * 1024 * 1024
"""The same over all subscriptions."""

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

BOOKIE_CONNECTIONS_MAX = 10_000
"""Connections of a bookie (fewer where its open files do not suffice): above it a newcomer takes the place of a connection whose client
has not authenticated (or asked for anything, where nobody has to), or is closed if there is none."""

METADATA_SERVER_CONNECTIONS_MAX = 5_000
"""Connections of a metadata server (fewer where its open files do not suffice): above it a newcomer takes the place of a connection
without a session, or is closed if there is none."""

STRANGERS_MAX = 1_000
"""Connections of a bookie or a metadata server whose clients have not proved yet that they may be there: a newcomer takes the place of the
longest waiting one of the address with the most, so that a client with the secret, who proves it within milliseconds, is always served."""

FRAME_BYTES_BEFORE_AUTH_MAX = 64 * 1024
"""Longest frame of a client of a bookie or a metadata server before it has proven who it is: a longer one closes the connection."""

BOOKIE_PROGRESS_TIMEOUT_S = 60.0
"""For a request that has begun to arrive, and for answers that wait to be read: without progress the connection is closed."""

BOOKIE_IDLE_TIMEOUT_S = 7200.0
"""Without a request (the longest poll takes half of that): the connection is closed. Clients connect again when they need it."""

BOOKIE_OUTPUT_HIGH_BYTES = 4 * 1024 * 1024
"""Unsent answers of one connection to a bookie: no more of its requests are read until they have drained to a quarter."""

BOOKIE_READS_WAITING_MAX = 2_500
"""Reads of one connection that wait for others of it to be answered: further ones are refused with ETOOMANYREQUESTS."""

BOOKIE_READ_BYTES_UNDER_WAY_MAX = 16 * 1024 * 1024
"""What the reads of one connection that are under way may return, as far as that is known: others wait."""

BOOKIE_KEYLESS_LEDGERS_MAX = 250_000
"""Ledgers that a bookie remembers a fence of and holds no entry of (some 400 bytes each): a fence of one more is refused with
ETOOMANYREQUESTS. Garbage collection forgets those that the metadata does not know, but for BOOKIE_FENCES_KEPT_MAX."""

BOOKIE_FENCES_KEPT_MAX = 10_000
"""Of the fences of deleted ledgers that never had an entry on a bookie, those that garbage collection keeps, for as long as tombstones."""

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

# ---- Traces
TRACE_EVENTS_MAX = 64
"""Events that are kept of one traced message: further ones are counted."""

TRACES_PER_TENANT_MAX = 200
"""Traces that a broker keeps of one tenant: the oldest one goes."""

TRACES_MAX = 1_000
"""Traces that a broker keeps: the oldest one of the tenant that has most goes. Some MiB; at most about 60 MiB, with the longest names."""

TRACE_TENANTS_MAX = 1_000
"""Tenants whose traces a broker keeps: those of the tenant that traced longest ago go."""

TRACES_FOLLOWED_PER_TOPIC_MAX = 16
"""Stored messages of one topic that are followed to their consumers: the oldest one is let go."""

TRACE_SUBSCRIPTIONS_MAX = 16
"""Subscriptions through which one traced message is followed: what becomes of it in others is not noted."""

TRACES_FOLLOWED_S = 600
"""A traced message is followed for so many seconds."""

# ---- Auto-recovery
DAMAGE_REPORTS_WAITING_MAX = 1_000
"""Damaged copies (a ledger's on a bookie) that readers have found and that are not marked yet; further ones are dropped and counted, and
found again by the next read or by the check of all copies."""

SCALABLE_CONSUMERS_PER_SUBSCRIPTION_MAX = 10_000
"""Stream or checkpoint consumers of one subscription of a scalable topic: further ones are refused with NotAllowedError."""

SCALABLE_WATCHES_PER_CONNECTION_MAX = 10_000
"""Layouts and namespaces of scalable topics that one connection watches, and consumers that it has registered: further ones are refused
with NotAllowedError."""

COORDINATOR_WATCHES_PER_CONNECTION_MAX = 8
"""Watches of the brokers of transaction coordinators that one connection has, where one tells a client all: further ones are refused with
NotAllowedError, since each is told anew every second."""
