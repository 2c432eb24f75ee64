"""Operations on a stream from outside: status, ledger, watch, pause, charge, backup, produce."""
