"""The tokenizer against others, and its parts."""
