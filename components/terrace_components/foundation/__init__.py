"""What every layer stands on: namespaces, secrets, storage, database."""
