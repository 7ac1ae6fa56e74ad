"""From a checked model directory to an executor on a GPU. Importing this reaches no driver."""

from __future__ import annotations
