"""Topics as a list of ledgers, and the cursors that remember what each subscription has consumed.

`factory.ManagedLedgerFactory` opens a `ledger.ManagedLedger`; that one opens `cursor.cursor.ManagedCursor`s. The decisions live in pure
files: `ledger_index` (position arithmetic), `ack_bits` and `ack_ranges` (acknowledgements), `config` (when a ledger is full), `retention`,
`cursor.codec` (bytes). Formats and znodes are Pulsar's (MLDataFormats).
"""
