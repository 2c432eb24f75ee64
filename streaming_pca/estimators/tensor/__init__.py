"""Power methods for the third moment."""
