"""Every key of Pulsar's broker.conf and standalone.conf is accounted for: it acts, or the list says why not."""

from __future__ import annotations

import pytest

from magnetar.base.settings import Setting, table_of
from magnetar.processes.configurations import BrokerProcessConfig, StandaloneConfig
from magnetar.processes.pulsar_keys import PULSAR_KEYS, defaults, dynamic_keys

OURS: dict[str, Setting] = {
    row.key: row for kind in (BrokerProcessConfig, StandaloneConfig) for row in table_of(kind).values()
}
"""A standalone server's defaults, where the two have different ones."""

NOT_DYNAMIC = {
    "superUserRoles": "whoever may change dynamic settings could make anybody a superuser",
    "brokerClientAuthenticationPlugin": "the credential of brokers is read at their start",
    "brokerClientAuthenticationParameters": "the credential of brokers is read at their start",
    "brokerClientTlsEnabled": "the connections of brokers are made at their start",
}


def test_a_key_has_one_meaning() -> None:
    both = sorted(OURS.keys() & PULSAR_KEYS.keys.keys())
    assert both == [], "these act now: move them to [acts] in src/magnetar/processes/pulsar_keys.toml"


def test_what_is_said_to_act_is_a_setting() -> None:
    assert sorted(defaults().keys() - OURS.keys()) == []


def test_older_names_lead_to_settings() -> None:
    assert [key for key, other in PULSAR_KEYS.keys.items() if other.name and other.name not in OURS] == []


def test_each_reason_is_a_sentence() -> None:
    reasons = {other.because for other in PULSAR_KEYS.keys.values() if not other.name} | {
        *PULSAR_KEYS.prefixes.values()
    }
    assert [
        reason for reason in reasons if not (reason[:1].isupper() or reason[:1] in "`/") or not reason.endswith(".")
    ] == ["subscriptionTypesEnabled says it."]


def _same(row: Setting, pulsars: str) -> bool:
    ours = str(row.default).lower() if isinstance(row.default, bool) else str(row.default)
    try:
        return float(ours) == float(pulsars)
    except ValueError:
        unset = not pulsars and (ours == "" or row.default in (-1, 0))
        return unset or {*ours.split(",")} == {part.rpartition(".")[2] for part in pulsars.split(",")}


@pytest.mark.parametrize("key", sorted(defaults()))
def test_a_default_is_pulsars_or_says_why_not(key: str) -> None:
    row = OURS[key]
    assert bool(row.differs) != _same(row, defaults()[key]), (
        f"{row.default!r} here, {defaults()[key]!r} in Pulsar; {row.differs!r}"
    )


def test_dynamic_settings_of_pulsars_that_exist_here_are_dynamic() -> None:
    assert {key for key in dynamic_keys() if not OURS[key].dynamic} == NOT_DYNAMIC.keys()
