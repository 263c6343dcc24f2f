"""Transactions (PIP-31): coordinators with their logs, what topics hide of open transactions, acknowledgements that wait for a commit.

Owns the decisions (`coordinator_state`, `buffer_state`, `pending_state`: pure) and their logs. Knows topics and subscriptions only as
`ports.Participants`; those who own them use `buffer`, `gate` and `pending_acks`. Entry point: `coordinators.Coordinators`.
"""
