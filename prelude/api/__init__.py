"""The engine as a caller has it: the verbs, ``AsyncEngine`` and ``Engine``, streams and ``map``. No rule of
planning, of prompts or of models stands here."""
