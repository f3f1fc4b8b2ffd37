"""The ledger, and what corrects it."""
