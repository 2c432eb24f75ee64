"""Observer of streams and ledgers, which holds the contents of their topics in bounded memory."""
