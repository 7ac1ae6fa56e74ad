"""The results of ``bench gpu_first`` as tables in Markdown: the six rows that are aimed at, then all others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

ROWS = (
    ("Qwen3-0.6B, 128 in, 1 out, alone: P50", "oneshot_06b_128in_1out_c1.p50_ms"),
    ("Qwen3-4B, 512 in, 1 out, 96 in flight", "oneshot_4b_512in_1out_c96.requests_s"),
    ("Qwen3-0.6B, 128 in, 32 out, 4 in flight: time per output token", "decode_06b_128in_32out_c4.tpot_ms"),
    (
        "64 questions on one state of 8,192 tokens, over the state's prefill",
        "questions_06b_64x8_on_8192.over_prefill",
    ),
    ("deterministic mode over default, throughput", "deterministic_4b_512in_1out_c96.over_default"),
    ("process start to first answer, Qwen3-0.6B", "ready_06b.first_answer_s"),
)


def ended_well(results: Sequence[dict[str, Any]]) -> set[str]:
    """The stages whose last end was a good one."""
    return {line["stage"] for line in latest(results) if line["key"] == "end" and line.get("how") == "done"}


def latest(results: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of each stage and key the last line: a stage may have run twice, and so may a test."""
    return list({(line["stage"], line["key"]): line for line in results}.values())


def shown_right(lines: Sequence[dict[str, Any]], key: str) -> bool:
    """Whether correctness was shown for the figure ``key``: of the paths that its load takes, and of the 0.6B model
    where that is its model. What another model or path lacks is not asked."""
    passed = {x["key"] for x in lines if x["stage"] == "correctness" and x.get("ok") is True}
    needed = ["eager", "captured", *(name for name in ("deterministic", "06b") if name in key)]
    return {f"correctness_{name}.worst" for name in needed} <= passed


def table(results: Sequence[dict[str, Any]]) -> str:
    lines = latest(results)
    figures = {x["key"]: x for x in lines if isinstance(x.get("values"), list) and x["values"]}

    def mark(key: str) -> str:
        return "" if shown_right(lines, key) else " (correctness not shown)"

    def by(found: dict[str, Any]) -> str:
        return "" if found.get("attention") in (None, "FlashInfer") else f" (attention by {found['attention']})"

    devices = dict.fromkeys(str(x["value"]) for x in lines if x["key"] == "device.name") or ["device unknown"]
    text = [", ".join([*devices, *(f"{x['value']} in {x['stage']}" for x in lines if x["key"] == "attention")]), ""]
    text += ["| measure | median | spread | unit | floor | reach | published |", "|---|---|---|---|---|---|---|"]
    for name, key in ROWS:
        found = figures.get(key)
        if found is None:
            text.append(f"| {name} | not measured | | | | | |")
            continue
        paper = (found.get("paper") or {}).get("prelude")
        cells = [*_cells(found), shown(found.get("reach")), shown(paper)]
        text.append(f"| {name}{by(found)}{mark(key)} | {' | '.join(cells)} |")
    text += ["", "| stage | ended | s |", "|---|---|---|"]
    text += [f"| {x['stage']} | {x.get('how')} | {x.get('seconds')} |" for x in lines if x["key"] == "end"]
    checks = [x for x in lines if "ok" in x]
    bad = [x for x in checks if x["ok"] is False]
    text += ["", f"{sum(x['ok'] is True for x in checks)} checks passed, {len(bad)} failed"]
    text += [f"- {x['key']} ({x['stage']}): {x.get('error') or x.get('value') or 'failed'}" for x in bad]
    text += ["", "| figure | median | spread | unit | floor | reach |", "|---|---|---|---|---|---|"]
    for key, x in figures.items():
        text.append(f"| {key}{by(x)}{mark(x['stage'])} | {' | '.join([*_cells(x), shown(x.get('reach'))])} |")
    return "\n".join(text) + "\n"


def figures_of(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The facts of a run and its figures as rows of ``bench/results``: ``value`` is the median, ``low`` and ``high``
    the least and the greatest. An aim is on the near side of the floor."""
    lines = latest(results)
    told = {x["key"]: x.get("value") for x in lines if x["stage"] in ("first", "versions") and "value" in x}
    versions = {key.removeprefix("version."): told.pop(key) for key in sorted(told) if key.startswith("version.")}
    facts = {**told, "versions": {key: one for key, one in versions.items() if one and "Error" not in str(one)}}
    facts["correctness"] = [x["key"] for x in lines if x["stage"] == "correctness" and x.get("ok") is True]
    rows = []
    for x in lines:
        if isinstance(x.get("values"), list) and x["values"]:
            load, _, measure = x["key"].rpartition(".")
            row = {"load": load, "measure": measure, "value": x.get("value"), "unit": x.get("unit", "")}
            sign = "<=" if (x.get("floor") or 0) < (x.get("reach") or 0) else ">="
            reach = f"{sign} {shown(x['reach'])}" if x.get("reach") else ""
            row |= {"low": min(x["values"]), "high": max(x["values"]), "reach": reach}
            rows.append(row | {"note": f"floor {shown(x['floor'])}" if x.get("floor") else "", "stage": x["stage"]})
    return {"facts": facts, "rows": rows}


def _cells(x: dict[str, Any]) -> list[str]:
    values = x["values"]
    spread = f"{shown(min(values))} to {shown(max(values))}"
    return [shown(x.get("value")), spread, str(x.get("unit", "")), shown(x.get("floor"))]


def shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, int | float) else ""
