"""Answers to "why": where something is, what is in its way, and what would change that, out of the state of the parts that decide.

Asked by the admin API, the upkeep's log lines and the metrics; nothing here is on the way of a message. Reasons come from the parts
(`reasons`), words from `sentences`.
"""
