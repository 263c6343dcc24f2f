"""Schemas of topics: types, Avro and Protobuf rules, versions in ledgers, and what producers and consumers may bring."""
