"""`terrace smoke`: the platform proven from outside, with the public clients that people use."""
