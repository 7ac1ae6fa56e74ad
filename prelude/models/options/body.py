"""The network below a head, out of a ``config.json`` as transformers writes it."""

from __future__ import annotations

from prelude.errors import UnsupportedModel, shown
from prelude.models.families import ARCHITECTURES, FAMILIES
from prelude.models.families.base import SpecRequest
from prelude.models.fields import Fields
from prelude.models.files import ModelDirectory
from prelude.models.options.base import CONFIG_LIMIT
from prelude.models.spec import ModelSpec


def body_of(directory: ModelDirectory, *, bidirectional: bool, file: str = "config.json") -> tuple[ModelSpec, Fields]:
    """Return the family's network without its own head; ``UnsupportedModel`` if that sees its text the other way."""
    raw = directory.object(file, CONFIG_LIMIT)
    where = str(directory.path / file)
    named, kind = raw.get("architectures"), raw.get("model_type")
    family = ARCHITECTURES.get(named[0]) if isinstance(named, list) and len(named) == 1 else None
    if family is None and isinstance(kind, str):
        family = FAMILIES.get(kind)
    if family is None:
        raise UnsupportedModel(
            f"{where}: unsupported: architectures {shown(named)}, model_type {shown(kind)}; supported: "
            f"{', '.join(sorted(FAMILIES))}"
        )
    fields = Fields(raw, where, family.defaults)
    spec = family.build(fields, SpecRequest(family.model_type, "none"))
    if spec.bidirectional is not bidirectional:
        wanted = "an encoder" if bidirectional else "a decoder"
        raise UnsupportedModel(
            f"{where}: unsupported: model_type {shown(family.model_type)}; the head reads {wanted}"
        )
    return spec, fields
