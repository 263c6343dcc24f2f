"""Imported first by every server of a run: its wall clock is wrong by what $FAULTS_CLOCK says, and $FAULTS_PLANTED names a bug to plant."""

import os
import time

_file, _real = os.environ.get("FAULTS_CLOCK", ""), time.time_ns


def _shifted() -> int:
    try:
        with open(_file) as file:
            return _real() + int(file.read() or 0)
    except FileNotFoundError:
        return _real()


if _file:
    time.time_ns = _shifted
_planted = os.environ.get("FAULTS_PLANTED", "")
if _planted:
    import sys

    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))))
    from bench.faults.planted import plant

    plant(_planted)
