"""Checkpoints: what a model directory says, its weights, and its layers as arrays. No request and no tokenizer
enters."""
