"""What a call can be sent to."""
