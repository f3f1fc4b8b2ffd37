"""The ledger: how records come into it, and what keeps it in order."""
