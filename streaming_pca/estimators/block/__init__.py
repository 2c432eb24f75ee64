"""Block update: noisy clipped means of A Q, refined from basis to basis."""
