"""The chains of entries: heads signed and kept elsewhere, and verification."""
