"""Random histories of Shared and Key_Shared subscriptions (the machines say what is checked)."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

from .subscription_machine import KeySharedMachine, SubscriptionMachine

_settings = settings(
    max_examples=120,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

SubscriptionMachine.TestCase.settings = _settings
KeySharedMachine.TestCase.settings = settings(_settings, max_examples=200)

TestShared = SubscriptionMachine.TestCase
TestKeyShared = KeySharedMachine.TestCase
