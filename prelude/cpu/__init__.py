"""The executor of CPUs: layers, attention and readouts over arrays, by the kernels of ``_native``. No request, queue
or token text enters."""
