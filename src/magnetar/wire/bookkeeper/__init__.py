"""BookKeeper's messages: ledger metadata now, the bookie protocol with the storage cluster."""
