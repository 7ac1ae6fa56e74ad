"""A bounded cache that needs no lock. ``_native/admission.pxi`` has it: each decision looks its questions up."""

from prelude._native.core import Memo

__all__ = ["Memo"]
