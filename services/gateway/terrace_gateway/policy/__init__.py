"""The governance version in force, in memory and in the database."""
