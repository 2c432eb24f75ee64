"""Records, payloads, files and releases: the formats that come in and go out."""
