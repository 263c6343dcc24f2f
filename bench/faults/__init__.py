"""Real processes under faults: workloads whose histories are written down and checked against promises fixed beforehand."""
