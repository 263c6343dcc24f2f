"""Return codes of a bookie and flags of a request: the numbers of BookKeeper's v2 protocol (BookieProtocol).

Inside magnetar these numbers are used everywhere; v3's status codes are mapped at the wire. Negative codes never travel: a client's
channel answers them itself.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class ReturnCode(IntEnum):
    """What a bookie answers. Only `NO_LEDGER` and `NO_ENTRY` say that something does not exist; all others say nothing."""

    OK = 0
    NO_LEDGER = 1
    NO_ENTRY = 2
    BAD_REQUEST = 100
    IO_ERROR = 101
    UNAUTHORIZED = 102
    BAD_VERSION = 103
    FENCED = 104
    READ_ONLY = 105
    TOO_MANY_REQUESTS = 106
    UNKNOWN_LEDGER_STATE = 107


EXPLICIT_NEGATIVES: Final = frozenset({int(ReturnCode.NO_LEDGER), int(ReturnCode.NO_ENTRY)})
"""The codes that may count towards "this entry does not exist" in a recovery. Nothing else ever does."""

BOOKIE_UNAVAILABLE: Final = -8
"""A bookie that cannot be reached (BookKeeper's client code BookieHandleNotAvailable). It proves nothing about entries."""

BOOKIE_TIMEOUT: Final = -23
"""A bookie that did not answer in time (BookKeeper's client code TimeoutException). It may or may not have done what was asked."""

FLAG_FENCE: Final = 1
"""Read: fence the ledger first."""

FLAG_RECOVERY_ADD: Final = 2
"""Add: allowed although the ledger is fenced."""

FLAG_HIGH_PRIORITY: Final = 4
"""Recovery traffic: let in although the bookie is read-only, as long as there is room."""

LAST_ENTRY: Final = -1
"""Entry id of a read that wants the highest entry the bookie holds."""

STATUS_OF_CODE: Final = {
    int(ReturnCode.OK): 0,
    int(ReturnCode.NO_LEDGER): 402,
    int(ReturnCode.NO_ENTRY): 403,
    int(ReturnCode.BAD_REQUEST): 404,
    int(ReturnCode.IO_ERROR): 501,
    int(ReturnCode.UNAUTHORIZED): 502,
    int(ReturnCode.BAD_VERSION): 503,
    int(ReturnCode.FENCED): 504,
    int(ReturnCode.READ_ONLY): 505,
    int(ReturnCode.TOO_MANY_REQUESTS): 506,
    int(ReturnCode.UNKNOWN_LEDGER_STATE): 507,
}
"""The StatusCode of protocol version 3."""

CODE_OF_STATUS: Final = {status: code for code, status in STATUS_OF_CODE.items()}
