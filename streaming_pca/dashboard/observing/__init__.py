"""Observer of streams and ledgers: what the broker's topics say, held in bounded memory."""
