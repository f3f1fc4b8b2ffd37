"""The simulated outside world, for substrates without model providers."""
