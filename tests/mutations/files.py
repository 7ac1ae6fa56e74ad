"""Edits of the reading of model directories."""

# ruff: noqa: E501 - the source is quoted as it is
from __future__ import annotations

from tests.mutations.edit import edit

SAFETENSORS = "prelude/models/safetensors_file.py"
SHARDS = "prelude/models/files.py"

EDITS = (
    edit(
        "headers_have_no_bound",
        "40",
        (SAFETENSORS, "    if not 2 <= length <= MAX_HEADER_BYTES:", "    if not 2 <= length:"),
    ),
    edit("headers_may_be_longer_than_files", "40", (SAFETENSORS, "    if length > size - 8:", "    if False:")),
    edit("tensors_have_no_number", "40", (SAFETENSORS, "    if tensors > MAX_TENSORS:", "    if False:")),
    edit(
        "unknown_types_are_read",
        "40",
        (
            SAFETENSORS,
            "    if not isinstance(dtype, str) or dtype not in DTYPES:",
            "    if not isinstance(dtype, str):",
        ),
    ),
    edit("shapes_may_overflow", "40", (SAFETENSORS, "    if extent > MAX_ELEMENTS:", "    if False:")),
    edit(
        "offsets_may_run_backwards",
        "40",
        (SAFETENSORS, "    if not begin <= end <= data_bytes:", "    if not end <= data_bytes:"),
    ),
    edit("sizes_need_not_fit_shapes", "40", (SAFETENSORS, "    if end - begin != needed:", "    if False:")),
    edit(
        "tensors_may_overlap",
        "40",
        (SAFETENSORS, "        if info.begin != reached:", "        if info.begin > reached:"),
    ),
    edit(
        "holes_are_passed_over",
        "40",
        (SAFETENSORS, "        if info.begin != reached:", "        if info.begin < reached:"),
    ),
    edit("bytes_may_be_left", "40", (SAFETENSORS, "    if reached != data_bytes:", "    if False:")),
    edit(
        "metadata_may_be_anything",
        "40",
        (
            SAFETENSORS,
            "    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):",
            "    if False:",
        ),
    ),
    edit(
        "an_index_names_any_file",
        "41",
        (SHARDS, '        and not any(character in name for character in "/\\\\:")\n', ""),
    ),
    edit("an_index_has_no_bound", "41", (SHARDS, "    if len(weight_map) > MAX_TENSORS:", "    if False:")),
    edit("an_index_may_name_many_files", "41", (SHARDS, "        if len(names) > MAX_SHARDS:", "        if False:")),
    edit("pickles_are_not_named", "45", (SHARDS, "    if pickles:\n", "    if False:\n")),
)
