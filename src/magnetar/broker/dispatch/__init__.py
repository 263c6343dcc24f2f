"""Who gets which entry: decision cores per subscription type and the pump that feeds them.

`subscriptions` builds on this package; this package knows neither subscriptions nor connections.
"""
