"""Topics as a list of ledgers, and the cursors that remember what each subscription has consumed.

`factory.ManagedLedgerFactory` opens a `ledger.ManagedLedger`; that one opens `cursor.ManagedCursor`s. The decisions live in pure
files: `ledger_index` (position arithmetic), `ack_bits` and `ack_ranges` (acknowledgements), `rollover`, `retention`,
`cursor_codec` (bytes). Formats and znodes are Pulsar's (MLDataFormats).
"""
