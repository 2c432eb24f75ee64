"""Demo on public data, with an embedded broker."""
