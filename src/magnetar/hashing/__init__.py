"""Hashes, rings, ranges and vnodes: who owns a key, what moves when the members change, and why. Pure functions, no I/O.

    murmur3 java_hash crc fnv ketama     hash functions with the peers' exact numbers
    ring                                 HashRing: ketama and falcon rings with weights
    ranges sticky consistent             the three ways of Key_Shared to share 65,536 slots
    bundles                              namespace bundles
    key_types key_encoding vnode         typed keys to vnodes, as RisingWave does it; spark_sql: the same inside Spark
    mapping                              VnodeMapping: vnodes to units, with plans of least movement
    vectorized                           numpy twins of all of these
    analysis                             balance, migration, monotonicity, spread and load of any scheme

Scalar modules need the standard library and mmh3 only; numpy is imported by `vectorized` and `analysis` alone.
"""
