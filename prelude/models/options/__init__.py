"""Formats of directories whose head reads the options of a question. A new one is a file of this folder and its lines
here; its text form is one of ``prelude/admission/forms``.

``option_model`` says which one a directory has. Formats that are known and cannot be computed are refused by name.
"""

from __future__ import annotations

from prelude.errors import UnsupportedModel
from prelude.models.files import ModelDirectory
from prelude.models.options.base import Network, OptionModel
from prelude.models.options.bev import BEV
from prelude.models.options.gliner import GLINER
from prelude.models.options.laya import JULIA, JULIA_CONFIG, LAYA, LAYA_CONFIG
from prelude.models.options.opendecider import CONFIG as OPENDECIDER_CONFIG
from prelude.models.options.opendecider import OPENDECIDER
from prelude.models.options.pointer import CONFIG as POINTER_CONFIG
from prelude.models.options.pointer import POINTER

_BY_FILE = {LAYA_CONFIG: LAYA, JULIA_CONFIG: JULIA, OPENDECIDER_CONFIG: OPENDECIDER, POINTER_CONFIG: POINTER}
_MERGE = "merge the adapter into its base (peft: merge_and_unload) and save the result as a directory of its own"
_REFUSED = {
    "joint_head.safetensors": "a head that reads all questions of a request together (Clef), which is not built",
    "score_bias.json": "projections of queries and candidates (Decision-2.0), which are not built",
    "schema_config.json": "a prompt that shows all questions to each other (Nimble), which is not built",
    "decision_config.json": "codes for options and layers without a causal mask (pplx-decider), which are not built",
    "head.pt": "a pickled head (Kev), which can run code when read: save its four tensors q.weight, q.bias, k.weight "
    f'and k.bias as {POINTER_CONFIG.replace("json", "safetensors")}, and {{"head_dim", "temperature"}} as '
    f"{POINTER_CONFIG}; {_MERGE}",
    "adapter_config.json": f"a LoRA adapter; {_MERGE}",
}
"""Files by which an unsupported format is known, and the missing part."""


def option_model(directory: ModelDirectory) -> OptionModel | None:
    """Return None for a directory without a head; ``UnsupportedModel`` for a known format that is not computed."""
    for name, model in _BY_FILE.items():
        if directory.has(name):
            return model
    for name, why in _REFUSED.items():
        if directory.has(name):
            raise UnsupportedModel(f"{directory.path / name}: unsupported: {why}")
    if not directory.has("config.json"):
        return None
    config = directory.object("config.json")
    if config.get("model_type") == "extractor":
        return GLINER
    return BEV if "backbone_config" in config else None


__all__ = ["Network", "OptionModel", "option_model"]
