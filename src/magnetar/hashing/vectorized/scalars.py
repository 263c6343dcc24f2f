"""Fixed-width key values as bytes, a whole array at a time. The rules and their reasons stand in `key_encoding`."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from magnetar.hashing.errors import KeyEncodingError
from magnetar.hashing.key_encoding import EXPONENT_MASK, MANTISSA_MASK, NAN_BITS, year_flags
from magnetar.hashing.vectorized.batch import Bytes

if TYPE_CHECKING:
    import numpy.typing as npt

INTEGERS: Final = {"tinyint": "<i1", "smallint": "<i2", "integer": "<i4", "bigint": "<i8", "serial": "<i8"}
FIXED_WIDTH: Final = (*INTEGERS, "boolean", "real", "double", "date", "timestamp", "timestamptz", "interval")

_EXTREME_DAYS: Final = 365_250_000
"""Dates further than a million years from 1970 do not fit chrono's 19 bits of year."""

_Words: TypeAlias = "npt.NDArray[np.uint64]"


def fixed_bytes(values: npt.NDArray[Any], name: str) -> Bytes:
    """Bytes (rows, width) of a column of the given type. KeyEncodingError for values out of its range."""
    if name in INTEGERS:
        return _bytes(_integers(values, name))
    if name == "boolean":
        if values.dtype.kind != "b":
            raise KeyEncodingError(f"a column of {values.dtype} is not a boolean")
        return values.astype(np.uint8).reshape(-1, 1)
    if name == "real":
        return _bytes(_real_bits(_floats(values, np.float32)))
    if name == "double":
        return _bytes(_double_bits(_floats(values, np.float64)))
    return _time_bytes(values, name)


def _bytes(values: npt.NDArray[Any]) -> Bytes:
    whole = np.ascontiguousarray(values)
    width = whole.dtype.itemsize * (whole.shape[1] if whole.ndim > 1 else 1)
    return whole.view(np.uint8).reshape(len(whole), width)


def _integers(values: npt.NDArray[Any], name: str) -> npt.NDArray[Any]:
    target = np.dtype(INTEGERS[name])
    if values.dtype == target:
        return values
    if values.dtype.kind not in "iu":
        raise KeyEncodingError(f"a column of {values.dtype} is not a valid {name}")
    limits = np.iinfo(target)
    if len(values) and (int(values.min()) < limits.min or int(values.max()) > limits.max):
        raise KeyEncodingError(f"values from {values.min()} to {values.max()} do not fit {name}")
    return values.astype(target)


def _floats(values: npt.NDArray[Any], target: type[np.floating[Any]]) -> npt.NDArray[Any]:
    if values.dtype.kind not in "fiu":
        raise KeyEncodingError(f"a column of {values.dtype} holds no numbers")
    with np.errstate(over="ignore"):
        floats = values.astype(target)
    if bool((np.isinf(floats) & np.isfinite(values)).any()):
        raise KeyEncodingError("values are too large for real")
    return floats


def _real_bits(values: npt.NDArray[np.float32]) -> _Words:
    bits = values.view(np.uint32)
    exponent = (bits >> np.uint32(23)) & np.uint32(0xFF)
    fraction = bits & np.uint32(0x7F_FFFF)
    mantissa = np.where(exponent == 0, fraction << np.uint32(1), fraction | np.uint32(0x80_0000))
    return _join(mantissa.astype(np.uint64), exponent.astype(np.int64) - 150, bits >> np.uint32(31), np.isnan(values))


def _double_bits(values: npt.NDArray[np.float64]) -> _Words:
    bits = values.view(np.uint64)
    exponent = (bits >> np.uint64(52)) & np.uint64(0x7FF)
    fraction = bits & np.uint64(MANTISSA_MASK)
    mantissa = np.where(exponent == 0, fraction << np.uint64(1), fraction | np.uint64(1 << 52))
    return _join(mantissa, exponent.astype(np.int64) - 1075, bits >> np.uint64(63), np.isnan(values))


def _join(
    mantissa: _Words, exponent: npt.NDArray[np.int64], sign: npt.NDArray[Any], nan: npt.NDArray[np.bool_]
) -> _Words:
    joined = mantissa & np.uint64(MANTISSA_MASK)
    joined |= (exponent & EXPONENT_MASK).astype(np.uint64) << np.uint64(52)
    joined |= (sign == 0).astype(np.uint64) << np.uint64(63)
    joined[mantissa == 0] = 0
    joined[nan] = NAN_BITS
    return joined


def _time_bytes(values: npt.NDArray[Any], name: str) -> Bytes:
    kind = values.dtype.kind
    if kind != ("m" if name == "interval" else "M"):
        raise KeyEncodingError(
            f"a column of {values.dtype} is not a valid {name}: give numpy datetime64 or timedelta64, or Arrow"
        )
    if name == "interval":
        micros = values.astype("m8[us]").astype("<i8")
        return _bytes(np.stack((micros, micros >> 63), axis=1))
    if name == "timestamptz":
        return _bytes(values.astype("M8[us]").astype("<i8"))
    days = values.astype("M8[D]")
    dates = chrono_dates(days.astype(np.int64))
    if name == "date":
        return _bytes(dates)
    # Nanoseconds since 1970 overflow 64 bits in 2262; those since midnight do not.
    nanos = (values - days).astype("m8[ns]").astype(np.int64)
    parts = np.stack((dates.view("<u4"), nanos // 1_000_000_000, nanos % 1_000_000_000), axis=1).astype("<u4")
    return _bytes(parts)


def chrono_dates(days: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
    """Chrono's form (year << 13, day of the year << 4, year flags) of days since 1970. KeyEncodingError far outside of history."""
    if len(days) and (int(days.min()) < -_EXTREME_DAYS // 4 or int(days.max()) > _EXTREME_DAYS // 4):
        raise KeyEncodingError("dates are more than 250,000 years away from 1970")
    years = days.astype("M8[D]").astype("M8[Y]")
    ordinals = days - years.astype("M8[D]").astype(np.int64) + 1
    numbers = years.astype(np.int64) + 1970
    return (numbers << 13 | ordinals << 4 | year_starts()[numbers % 400]).astype("<i4")


@cache
def year_starts() -> npt.NDArray[np.int64]:
    """Chrono's flags of the 400 years after which the calendar repeats."""
    return np.array([year_flags(year) for year in range(400)], np.int64)
