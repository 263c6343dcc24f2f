"""The foundation: errors, clock, tasks, executor, network, limits, checksum, configuration, logs.

What may live here: things without knowledge of messaging that at least two packages above need. It imports nothing of magnetar.
"""
