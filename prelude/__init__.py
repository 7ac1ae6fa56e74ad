"""Prelude: an inference engine inside your process, for decisions and chat on one set of weights.

Importing this package is quick and imports no torch; an engine does, when it is made.
"""

from __future__ import annotations

import pkgutil

# A checkout on sys.path must not hide the built parts of an installed wheel.
__path__ = pkgutil.extend_path(__path__, __name__)

__version__ = "0.1.0"
