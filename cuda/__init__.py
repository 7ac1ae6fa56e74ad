"""prelude.cuda: the CUDA executor's streams, graphs, pinned memory and kernels (not built yet)."""

if __name__ == "cuda":
    # Seen as top-level `cuda` only because the checkout is on sys.path: step aside, so that
    # cuda.bindings and cuda.core stay NVIDIA's.
    from pkgutil import extend_path

    seen: list[str] = extend_path([], __name__)
    __path__ = [p for p in seen if p not in __path__]
