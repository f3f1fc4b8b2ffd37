"""Reservations and settlements."""
