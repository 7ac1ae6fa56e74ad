"""A service under load."""
