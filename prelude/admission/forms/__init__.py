"""The text forms of heads that read options, by ``OptionSettings.form``. A new one is a file of this folder and a
line here."""

from __future__ import annotations

from prelude.admission.forms.base import Asked, Form, Rendered
from prelude.admission.forms.bev import Bev
from prelude.admission.forms.gliner import Gliner
from prelude.admission.forms.kev import Kev
from prelude.admission.forms.laya import Julia, Laya
from prelude.admission.forms.opendecider import OpenDecider
from prelude.admission.forms.sparrow import Sparrow

FORMS: dict[str, Form] = {
    "laya": Laya(),
    "julia": Julia(),
    "opendecider": OpenDecider(),
    "gliner": Gliner(),
    "kev": Kev(),
    "bev": Bev(),
    "sparrow": Sparrow(),
}

__all__ = ["FORMS", "Asked", "Form", "Rendered"]
