"""BookKeeper's bytes: ledger metadata, and the bookie protocol in its packed form (`v2`) and as protobuf (version 3)."""
