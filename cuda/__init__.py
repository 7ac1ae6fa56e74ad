"""prelude.cuda: the CUDA executor. Importing it touches no driver; ``driver.missing()`` says what it would lack.

driver.py      cuda-python: streams, events, copies, graphs, NVRTC, kernel launches. Nothing else calls a driver
compiler.py    kernels/*.cu -> cubin, cached by content
device.py      what a step asks of a device, as one protocol, and the real one
kernels.py     our kernels: names, arguments, and what each may touch
attention.py   the one file that calls FlashInfer
layout.py      ForwardBatch -> token order and attention levels, plain numpy
staging.py     one packed copy a step, results behind it; fixed places with bounds
shapes.py      buckets of captured graphs
forward.py     the decoder as a list of operations on fixed buffers
reading.py     hidden rows -> numbers: what every reading is; read_logprobs.py, read_samples.py, read_vectors.py;
               readings.py: all of a step
weights.py     checkpoint -> merged places on the device, through pinned memory
memory.py      what may be taken, what becomes blocks
executor.py    the Executor
"""

if __name__ == "cuda":
    # Seen as top-level `cuda` only because the checkout is on sys.path: step aside, so that
    # cuda.bindings and cuda.core stay NVIDIA's.
    from pkgutil import extend_path

    seen: list[str] = extend_path([], __name__)
    __path__ = [p for p in seen if p not in __path__]
