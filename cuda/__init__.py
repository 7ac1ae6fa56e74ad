"""prelude.cuda: the CUDA executor's streams, graphs, pinned memory and kernels (not built yet)."""

if __name__ == "cuda":
    # Seen as top-level `cuda` only because the checkout is on sys.path: step aside, so that
    # cuda.bindings and cuda.core stay NVIDIA's.
    from pkgutil import extend_path

    __path__: list[str] = [p for p in extend_path([], __name__) if p not in __path__]
