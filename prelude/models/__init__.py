"""Checkpoints: the settings of a model directory, its weights, and its layers as arrays. No request and no tokenizer
enters."""
