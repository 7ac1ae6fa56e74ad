"""GGUF, the one-file format of llama.cpp: header, tensors, names, config and tokenizer out of its metadata."""
