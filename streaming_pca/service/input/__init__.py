"""Input topics: clock, batch boundaries, reading and batches."""
