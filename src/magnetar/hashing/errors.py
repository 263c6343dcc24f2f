"""What the hashing library raises.

All are `ValueError`s: the caller passed something that cannot work, and the text names the fix.

The package is usable on its own, so these do not hang on `magnetar.base.errors`.
"""

from __future__ import annotations


class HashingError(ValueError):
    """The root of this package's errors."""


class EmptyRingError(HashingError):
    """There is nobody to own anything: no node, no member, no unit."""


class DuplicateMemberError(HashingError):
    """The node, member or unit is there already."""


class UnknownMemberError(HashingError):
    """The node, member or unit is not there."""


class InvalidWeightError(HashingError):
    """A weight is zero, negative or not a finite number."""


class InvalidRangeError(HashingError):
    """A range is negative, reversed or outside the slots."""


class RangeOverlapError(HashingError):
    """A sticky range overlaps one that is taken."""


class RangeCoverageError(HashingError):
    """Some slots have no owner."""


class RangesExhaustedError(HashingError):
    """Every region is one slot wide: no newcomer can get a part."""


class VnodeCountError(HashingError):
    """The number of vnodes is out of bounds, or smaller than the number of units."""


class KeyEncodingError(HashingError):
    """A key's type has no encoding, or a value does not fit its type."""


class MissingExtraError(HashingError):
    """An optional library is needed; the text names the extra that brings it."""
