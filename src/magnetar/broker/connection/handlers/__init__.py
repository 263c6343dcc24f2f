"""One file per noun of the protocol; `connection/routes` lists which function takes which command."""
