"""The contract of an executor, the layout of a step and its memory, for every device. Neither torch nor a kernel of
one device enters."""
