"""What providers say that they billed, and the books brought to it."""
