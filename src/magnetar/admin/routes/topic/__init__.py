"""Routes about topics: what is in them, who reads them, how they are cut."""
