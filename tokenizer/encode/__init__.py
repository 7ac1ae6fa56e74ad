"""From inputs to encodings: words and pairs, control tokens, post-processors, arrays."""
