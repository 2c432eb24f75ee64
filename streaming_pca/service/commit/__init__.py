"""Admission, checkpoints and recovery: the writers of ledger, state and releases."""
