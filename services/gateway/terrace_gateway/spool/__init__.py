"""The replica's durable record on its own volume, until the ledger has it."""
