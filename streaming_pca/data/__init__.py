"""Records, payloads, files and releases: the formats of input and output."""
