"""A scalable topic in the simulator: the product's own client in producers and consumers, and an operator who splits and merges.

`scenario` draws a configuration from a seed, `programs` are the applications, `promises` checks what they and the metadata service see,
and `run` leads one seed through its life. Enter at `run.run_scalable_seed`.
"""
