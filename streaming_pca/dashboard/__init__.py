"""Dashboard and HTTP API: streams, releases and ledgers as their topics show them."""
