"""Whole clusters with brokers in the simulator: brokers, producers and consumers beside the bookies and the metadata service.

`nodes` are the processes, `connection` and `clients` speak Pulsar's binary protocol as the official clients do, `promises` checks what they
see, `scenario` draws a configuration from a seed, and `run` leads one seed through its life. Enter at `run.run_seed`.
"""
