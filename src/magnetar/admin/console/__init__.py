"""The console: pages of a broker's HTTP port for people with a browser.

A page has no data of its own. It asks the admin API, in this process and with its reader's credential (`visit`), so that rights, other
brokers' topics and the work that a request may be are what they are for every other client, and what a page does is what a route does.
`console` is the ASGI application: login, forgery, errors, live parts. `pages/` makes the values of each template in `templates/`.
"""
