"""System One decisions without a server: a request as a dict in, its answer as a dict out.

    from prelude.systemone import SystemOne

    one = SystemOne(engine)  # an Engine or an AsyncEngine
    body = one.answer({"model": "jev-latest", "state": "I was charged twice.", "questions": {
        "refund": {"type": "noul", "instructions": "Is the customer asking for money back?"},
        "team": {"type": "choice", "criteria": {"Billing": "Invoices, refunds", "Sales": None}},
    }})
    body = await one.aanswer(request)  # the same inside an event loop

``answer`` takes the body of ``POST /v1/systemone``, ``decisions`` that of ``POST /v1/decisions`` (OpenAI's form),
``models`` gives the body of ``GET /v1/models``. A bad request raises ``SystemOneError``, whose ``errors`` say where
(``loc``). ``problem`` turns any error into a status and a body, for a service. ``read_body`` reads the bytes of a
request within bounds (``aread_body`` in an event loop), ``write_body`` writes those of an answer. docs/DECISIONS.md
has the fields.
"""

from __future__ import annotations

from prelude.systemone.adapter import SystemOne
from prelude.systemone.body import aread_body, read_body, write_body
from prelude.systemone.errors import SystemOneError, problem

__all__ = ["SystemOne", "SystemOneError", "aread_body", "problem", "read_body", "write_body"]
