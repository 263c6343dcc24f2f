"""Topic compaction: the newest message of every key in a ledger of its own, and reading it in front of the topic."""
