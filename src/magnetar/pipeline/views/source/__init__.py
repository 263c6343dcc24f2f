"""Messages of topics as rows of sources."""
