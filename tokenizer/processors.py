"""Post-processors: views of a loaded tokenizer's, or made by themselves to be called."""

from __future__ import annotations

from .components import PostProcessor as PostProcessor
from .components import component_type

BertProcessing = component_type("post_processor", "BertProcessing")
ByteLevel = component_type("post_processor", "ByteLevel")
RobertaProcessing = component_type("post_processor", "RobertaProcessing")
Sequence = component_type("post_processor", "Sequence")
TemplateProcessing = component_type("post_processor", "TemplateProcessing")
