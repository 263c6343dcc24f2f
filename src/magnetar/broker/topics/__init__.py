"""Topics: who publishes (producers, access modes, dedup), what is kept (expiry, backlog quota), and which topics are loaded.

`registry` finds or loads a topic; `persistent` and `nonpersistent` are the two kinds; a publish goes through `producer` and
`publish`, plain calls all the way.
"""
