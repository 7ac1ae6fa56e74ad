"""The CUDA executor, on a machine with a GPU."""
