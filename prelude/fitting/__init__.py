"""Decisions that are fitted to labelled texts: heads on the vector that ``embed`` gives.

``engine.fit`` makes one, and ``decide`` takes it wherever it takes a question (``prelude/admission/fitted.py``).
"""
