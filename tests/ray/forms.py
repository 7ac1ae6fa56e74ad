"""Rows and a form for tests of engines in other programs' workers."""

from __future__ import annotations

from typing import Any

FORM: dict[str, Any] = {
    "state": "{rubric}\n\nText: {text}",
    "questions": {
        "language": {"question": "Which language is it?", "labels": ["English", "German"]},
        "polite": {"question": "Is it polite?"},
    },
}
TEXTS = ["Where is my parcel?", "Wo ist mein Paket?", "Thank you very much.", "Vielen Dank.", None]
ROWS: list[dict[str, Any]] = [
    {"id": number, "rubric": f"Rubric {number % 3}: judge what is written.", "text": TEXTS[number % len(TEXTS)]}
    for number in range(64)
]
