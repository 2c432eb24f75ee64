"""Topics of a stream: names, checks and sizes."""
