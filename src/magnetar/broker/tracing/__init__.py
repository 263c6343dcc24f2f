"""The way of single messages that a client asked to have traced: noticed by a property, collected in memory, read by request.

Nothing is looked up for messages that nobody traces: publishing notices the property while it checks the metadata
(`connection/handlers/send`), and whoever hands out or acknowledges entries looks at one attribute for each turn of many.
"""
