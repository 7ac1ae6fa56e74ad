"""The host's path of a request beside the forward pass."""
