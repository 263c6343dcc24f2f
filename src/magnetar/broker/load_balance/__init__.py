"""The load manager's decisions, pure: which broker serves which bundle, and when one moves or is split.

`plan` puts them together; `broker.load_manager` reads the cluster and carries them out.
"""
