"""The HTTP edge: routes, the client's side of an exchange, errors."""
