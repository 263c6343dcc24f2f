"""PostgreSQL's protocol, version 3: bytes only."""
