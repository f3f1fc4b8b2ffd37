"""The ledger as Parquet outside of the database, and which months stay in it."""
