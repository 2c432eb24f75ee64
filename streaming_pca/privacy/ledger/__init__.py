"""Ledger of charges: entries, rules, the cap, and the independent verifier."""
