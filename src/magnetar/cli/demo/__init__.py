"""`magnetar demo`: real data through a real server with the official client, verified to the last message.

`flights` runs the show; `source` reads the data, `server` runs a standalone server for the time of the demo, `producer` sends,
`consumer` is the program of each consumer process, `records` is what consumers write down, `verdict` judges it, `screen` draws.
"""
