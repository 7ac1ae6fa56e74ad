"""Post-processors: views of a loaded tokenizer's, or made by themselves to be called."""

from __future__ import annotations

from .components import PostProcessor, component_type

__all__ = ["BertProcessing", "ByteLevel", "PostProcessor", "RobertaProcessing", "Sequence", "TemplateProcessing"]

BertProcessing = component_type("post_processor", "BertProcessing")
ByteLevel = component_type("post_processor", "ByteLevel")
RobertaProcessing = component_type("post_processor", "RobertaProcessing")
Sequence = component_type("post_processor", "Sequence")
TemplateProcessing = component_type("post_processor", "TemplateProcessing")
