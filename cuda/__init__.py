"""prelude.cuda: the CUDA executor. Importing it touches no driver; ``driver.missing()`` names the missing parts.

driver.py      cuda-python: streams, events, copies, graphs, NVRTC, kernel launches. Nothing else calls a driver
compiler.py    kernels/*.cu -> cubin, cached by content
device.py      the operations of a device that a step uses, as one protocol, and the real device
kernels.py     our kernels: names, arguments, and the memory that each may touch
attention.py   the one file that calls FlashInfer
lane.py        the host's part of a step; _native/gpu.pyx packs its arrays
staging.py     one packed copy a step, results behind it; fixed places with bounds
shapes.py      buckets of captured graphs
forward.py     the decoder as a list of operations on fixed buffers
readout_operation.py   hidden rows -> numbers: the interface of a readout on the device
read_*.py      the kinds of readouts: logprobs, sampled tokens, vectors
step_readouts.py       all readouts of a step
matmul_search.py       the fastest cuBLASLt algorithm of each matmul, kept on disk; cublaslt.py: its C interface
flashinfer_trial.py   FlashInfer against float32, before an engine uses it
own_attention.py  short prompts by kernels/prompts.cu; own_trial.py tries it before use
kept_choices.py   choices and outcomes of trials on disk
graphs.py      recorded steps and which of them are kept
weights.py     checkpoint -> merged places on the device, through pinned memory
memory.py      the share of device memory that becomes KV blocks
executor.py    the Executor
"""

if __name__ == "cuda":
    # Seen as top-level `cuda` only because the checkout is on sys.path: step aside, so that
    # cuda.bindings and cuda.core stay NVIDIA's.
    from pkgutil import extend_path

    seen: list[str] = extend_path([], __name__)
    __path__ = [p for p in seen if p not in __path__]
