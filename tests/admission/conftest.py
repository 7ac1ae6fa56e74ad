"""Preparers over the small tokenizer of ``toys``."""

from __future__ import annotations

from typing import Any

import pytest

from prelude.admission.preparer import Preparer
from tests.admission import toys


@pytest.fixture
def tokenizer() -> Any:
    return toys.plain_tokenizer()


@pytest.fixture
def preparer() -> Preparer:
    return toys.make()


@pytest.fixture
def chatty() -> Preparer:
    return toys.make(chat=toys.chat)
