"""The load manager in the simulator: machines that get busy and idle, a leader that moves and splits bundles, traffic meanwhile.

`run` has the run, its configuration and its checkers, `mutations` deliberate bugs. Enter at `run.run_balance_seed`.
"""
