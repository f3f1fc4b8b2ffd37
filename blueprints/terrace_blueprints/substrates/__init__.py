"""Where the platform runs, as plain data: one file per substrate."""
