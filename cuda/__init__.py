"""prelude.cuda: the CUDA executor. Importing it touches no driver; ``driver.missing()`` names the missing parts.

``docs/CUDA.md`` names the files. ``driver.py`` alone calls a driver, and ``attention.py`` alone FlashInfer.
"""

if __name__ == "cuda":
    # Seen as top-level `cuda` only because the checkout is on sys.path: step aside, so that
    # cuda.bindings and cuda.core stay NVIDIA's.
    from pkgutil import extend_path

    seen: list[str] = extend_path([], __name__)
    __path__ = [p for p in seen if p not in __path__]
