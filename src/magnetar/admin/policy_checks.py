"""What a policy's body must look like, and how it is stored: a check for each kind."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from magnetar.admin.errors import BadRequestError
from magnetar.base.limits import PARTITIONS_MAX
from magnetar.broker.namespaces.errors import PreconditionFailedError
from magnetar.broker.namespaces.policies import BACKLOG_POLICIES, DELETE_MODES, DESTINATION_STORAGE, MESSAGE_AGE

Check = Callable[[str, Any], Any]
"""(name, value from outside) -> value to store. Raises BadRequestError or PreconditionFailedError."""

QUORUM_MAX = 64
"""Larger ensembles are refused: no cluster has them, and a topic could never write."""

PERSIST_INTERVAL_S_MAX = 3600
"""Longest time between two writes of a subscription's progress that managedLedgerMaxMarkDeleteRate may ask for."""

PERSIST_RATE_MAX = 1_000_000
"""Larger values of managedLedgerMaxMarkDeleteRate are refused."""

_INT_MAX = 2**31 - 1
_LONG_MAX = 2**63 - 1


def whole(minimum: int = 0, maximum: int = _INT_MAX, text: str = "") -> Check:
    """`text`: what Pulsar says about a number that is out of bounds, where it is not the usual."""

    def check(name: str, value: Any) -> Any:
        value = number_of(value)
        if not isinstance(value, int) or isinstance(value, bool):
            raise BadRequestError(f"{name} must be a whole number")
        if not minimum <= value <= maximum:
            limit = f"{minimum} or more" if value < minimum else f"{maximum} or less"
            raise PreconditionFailedError(text or f"{name} must be {limit}")
        return value

    return check


def number_of(value: Any) -> Any:
    """The whole number that a JSON string holds, everything else as it is: Pulsar's parser takes `"3"` for 3."""
    return int(value) if isinstance(value, str) and _WHOLE.fullmatch(value) else value


_WHOLE = re.compile(r"-?[0-9]{1,19}", re.ASCII)


def truth(name: str, value: Any) -> Any:
    if value in ("true", "false"):  # a JSON string, which Pulsar's parser takes as well
        return value == "true"
    if not isinstance(value, bool):
        raise BadRequestError(f"{name} must be true or false")
    return value


def one_of(*choices: str) -> Check:
    def check(name: str, value: Any) -> Any:
        if value not in choices:
            raise BadRequestError(f"{name} must be one of {', '.join(choices)}")
        return value

    return check


def some_of(*choices: str) -> Check:
    def check(name: str, value: Any) -> Any:
        if not isinstance(value, list) or any(item not in choices for item in value):
            raise BadRequestError(f"{name} must be a list of {', '.join(choices)}")
        return sorted(set(value))

    return check


def record(name: str, value: Any, fields: Mapping[str, Check], required: tuple[str, ...] = ()) -> dict[str, Any]:
    """A JSON object; known fields are checked, unknown ones kept."""
    if not isinstance(value, dict) or any(key not in value for key in required):
        raise BadRequestError(f"{name} must be an object with {', '.join(required or fields)}")
    return {
        key: fields[key](f"{name}.{key}", item) if key in fields and item is not None else item
        for key, item in value.items()
    }


def retention(name: str, value: Any) -> Any:
    """Pulsar: -1 is for ever, and a 0 beside anything but a 0 would mean two things at once."""
    found = record(
        name,
        value,
        {"retentionTimeInMinutes": whole(-1), "retentionSizeInMB": whole(-1, _LONG_MAX)},
        ("retentionTimeInMinutes", "retentionSizeInMB"),
    )
    minutes, megabytes = found["retentionTimeInMinutes"], found["retentionSizeInMB"]
    if minutes is None or megabytes is None or (minutes == 0) != (megabytes == 0):
        raise PreconditionFailedError(
            "Invalid retention policy: both size and time must be 0, or neither may be (-1 stands for no limit)"
        )
    return found


def persistence(name: str, value: Any) -> Any:
    fields = ("bookkeeperEnsemble", "bookkeeperWriteQuorum", "bookkeeperAckQuorum")
    checks: dict[str, Check] = dict.fromkeys(fields, whole(1, QUORUM_MAX))
    found = record(name, value, {**checks, "managedLedgerMaxMarkDeleteRate": _rate}, fields)
    ensemble, write, ack = (found[field] for field in fields)
    if None in (ensemble, write, ack) or not ensemble >= write >= ack:
        raise BadRequestError(
            f"Bookkeeper Ensemble ({ensemble}) >= WriteQuorum ({write}) >= AckQuorum ({ack}) must hold"
        )
    return found


def _rate(name: str, value: Any) -> Any:
    """Times a second; at most one in PERSIST_INTERVAL_S_MAX, so that acknowledgements are not forgotten for hours."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise BadRequestError(f"{name} must be a number")
    if value != 0 and not 1 / PERSIST_INTERVAL_S_MAX <= value <= PERSIST_RATE_MAX:
        raise PreconditionFailedError(
            f"{name} must be 0, or between {1 / PERSIST_INTERVAL_S_MAX:.4f} and {PERSIST_RATE_MAX}"
        )
    return value


def delayed(name: str, value: Any) -> Any:
    fields = {"active": truth, "tickTime": whole(1, _LONG_MAX), "maxDelayInMillis": whole(0, _LONG_MAX)}
    return record(name, value, fields, ("active",))


def auto_topic(name: str, value: Any) -> Any:
    fields = {
        "allowAutoTopicCreation": truth,
        "topicType": one_of("partitioned", "non-partitioned"),
        "defaultNumPartitions": whole(1, PARTITIONS_MAX),
    }
    if isinstance(value, dict) and value.get("topicType") == "partitioned":
        partitions = value.get("defaultNumPartitions")
        if isinstance(partitions, int) and partitions < 1:
            raise PreconditionFailedError(
                "Invalid configuration for autoTopicCreationOverride. "
                "the detail is [defaultNumPartitions] cannot be less than 1 for partition type."
            )
    if isinstance(value, dict) and value.get("topicType") == "":  # what the Go client sends for none
        value = {**value, "topicType": None}
    found = record(name, value, fields, ("allowAutoTopicCreation",))
    if found.get("topicType") == "non-partitioned" and found.get("defaultNumPartitions") is not None:
        raise PreconditionFailedError(
            "Invalid configuration for autoTopicCreationOverride. "
            "the detail is [defaultNumPartitions] is not allowed to be set when the type is non-partition."
        )
    if found.get("topicType") == "partitioned" and found.get("defaultNumPartitions") is None:
        raise PreconditionFailedError(
            "Invalid configuration for autoTopicCreationOverride. "
            "the detail is [defaultNumPartitions] cannot be null when the type is partitioned."
        )
    return found


def auto_subscription(name: str, value: Any) -> Any:
    return record(name, value, {"allowAutoSubscriptionCreation": truth}, ("allowAutoSubscriptionCreation",))


def dispatch_rate(name: str, value: Any) -> Any:
    fields = {
        "dispatchThrottlingRateInMsg": whole(-1),
        "dispatchThrottlingRateInByte": whole(-1, _LONG_MAX),
        "relativeToPublishRate": truth,
        "ratePeriodInSecond": whole(1),
    }
    return _with_defaults(record(name, value, fields), dict(zip(fields, (-1, -1, False, 1), strict=True)))


def publish_rate(name: str, value: Any) -> Any:
    fields = {"publishThrottlingRateInMsg": whole(-1), "publishThrottlingRateInByte": whole(-1, _LONG_MAX)}
    return _with_defaults(record(name, value, fields), dict.fromkeys(fields, -1))


def subscribe_rate(name: str, value: Any) -> Any:
    fields = {"subscribeThrottlingRatePerConsumer": whole(-1), "ratePeriodInSecond": whole(1)}
    return _with_defaults(record(name, value, fields), dict(zip(fields, (-1, 30), strict=True)))


def _with_defaults(found: dict[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Pulsar's objects have a value in every field."""
    return {**defaults, **{key: value for key, value in found.items() if value is not None}}


def inactive_topic(name: str, value: Any) -> Any:
    fields = {
        "inactiveTopicDeleteMode": one_of(*DELETE_MODES),
        "maxInactiveDurationSeconds": whole(1),
        "deleteWhileInactive": truth,
    }
    found = record(name, value, fields, tuple(fields))
    if None in (found[field] for field in fields):
        raise BadRequestError(f"{name} needs a value for each of {', '.join(fields)}")
    return found


_SCALE_TIMES = ("splitCooldownSeconds", "mergeCooldownSeconds", "mergeWindowSeconds")
_SCALE_RATES = ("MsgRateIn", "BytesRateIn", "MsgRateOut", "BytesRateOut")


def auto_scale(name: str, value: Any) -> Any:
    """What scalable topics of a namespace do instead of what the broker's settings say. Unknown fields are refused: a threshold that is
    misspelled would never be noticed."""
    fields: dict[str, Check] = {
        "enabled": truth,
        "maxSegments": whole(1),
        "minSegments": whole(1),
        "maxDagDepth": whole(),
        **dict.fromkeys(_SCALE_TIMES, whole()),
        **{f"{kind}{rate}Threshold": _threshold for kind in ("split", "merge") for rate in _SCALE_RATES},
    }
    found = record(name, value, fields)
    unknown = sorted(set(found) - set(fields))
    if unknown:
        raise BadRequestError(f"{name} has no field {unknown[0]}; there are {', '.join(fields)}")
    for low, high in (
        ("minSegments", "maxSegments"),
        *((f"merge{rate}Threshold", f"split{rate}Threshold") for rate in _SCALE_RATES),
    ):
        least, most = found.get(low), found.get(high)
        if least is not None and most is not None and (least > most or (least == most and low != "minSegments")):
            raise PreconditionFailedError(f"{name}: {high} must be above {low}")
    return {key: item for key, item in found.items() if item is not None}


def _threshold(name: str, value: Any) -> Any:
    """A rate per second above 0, whole or not."""
    value = number_of(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadRequestError(f"{name} must be a number")
    if not 0 < value < float("inf"):
        raise PreconditionFailedError(f"{name} must be above 0")
    return value


def any_object(name: str, value: Any) -> Any:
    """Kept as it came."""
    if not isinstance(value, dict):
        raise BadRequestError(f"{name} must be an object")
    return value


def clusters(name: str, value: Any) -> Any:
    if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
        raise BadRequestError(f"{name} must be a list of cluster names")
    if not value:
        raise PreconditionFailedError("ClusterIds should not be null or empty")
    return sorted(set(value))


def backlog_quota(value: Any, kind: str) -> dict[str, Any]:
    """A quota as it is stored. `limit`, also as a text, is the size limit's name before Pulsar 2.8."""
    if kind not in (DESTINATION_STORAGE, MESSAGE_AGE):
        raise BadRequestError(f"backlogQuotaType must be {DESTINATION_STORAGE} or {MESSAGE_AGE}")
    if not isinstance(value, dict):
        raise BadRequestError('expected {"policy": "...", "limitSize": n, "limitTime": n}')
    size = _limit("limitSize", value.get("limitSize", value.get("limit")))
    time = _limit("limitTime", value.get("limitTime"))
    policy = one_of(*BACKLOG_POLICIES)("policy", value.get("policy"))
    return {"limit": size, "limitSize": size, "limitTime": time, "policy": policy}


def check_quota_fits(quota: Mapping[str, Any] | None, retention: Mapping[str, Any] | None) -> None:
    """Raises PreconditionFailedError for a limit of the backlog that is not below what retention keeps anyway, as Pulsar."""
    if quota is None or retention is None:
        return
    megabytes, minutes = retention.get("retentionSizeInMB") or 0, retention.get("retentionTimeInMinutes") or 0
    limit_bytes, limit_s = quota.get("limitSize", quota.get("limit", -1)), quota.get("limitTime", -1)
    if (megabytes > 0 and limit_bytes >= megabytes * 2**20) or (minutes > 0 and limit_s >= minutes * 60):
        raise PreconditionFailedError(
            "Backlog Quota exceeds configured retention quota. Please increase retention quota and retry"
        )


def _limit(name: str, value: Any) -> int:
    return int(whole(-1, _LONG_MAX)(name, -1 if value is None else value))
