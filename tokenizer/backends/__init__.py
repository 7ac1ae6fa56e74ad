"""Which backend serves a file, and the reference backend: HF `tokenizers` within bounds."""
