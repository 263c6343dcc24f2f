"""The load manager: which broker serves which bundle, and when one moves or is split.

The decisions are pure (`plan` and what it is made of); `report`, `manager` and `metadata` carry them out.
"""
