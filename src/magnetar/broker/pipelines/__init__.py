"""What a broker knows of pipelines that read its topics: what their drivers report. It never reads their state."""
