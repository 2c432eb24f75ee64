"""HTTP API of streams and ledgers."""
