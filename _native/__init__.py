"""The native plane: block allocator, prefix trie, packer. Imports nothing from the engine."""
