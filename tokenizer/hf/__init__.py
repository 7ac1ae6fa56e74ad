"""transformers' tokenizers over ours: their calls, the object in HF's place, and how changes of it are followed."""
