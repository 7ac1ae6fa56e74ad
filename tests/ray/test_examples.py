"""The examples on Ray, as a user runs them."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

pytest.importorskip("ray.data", reason="ray[data] is not installed")
pytest.importorskip("ray.serve", reason="ray[serve] is not installed")

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def test_the_data_example_scores_a_file(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    source = tmp_path / "tickets.csv"
    source.write_text("id,body\n" + "".join(f"{at},Where is parcel {at}?\n" for at in range(20)), encoding="utf-8")
    target = tmp_path / "scored"
    command = [sys.executable, str(EXAMPLES / "ray_data.py"), str(source), str(target)]
    command += ["--text", "body", "--choice", "topic=billing,delivery"]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    rows = pq.read_table(target).to_pylist()
    assert sorted(row["id"] for row in rows) == list(range(20))
    assert all(row["topic"] in ("billing", "delivery") and row["error"] is None for row in rows)


def test_the_serve_example_answers_over_http() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, str(EXAMPLES / "ray_serve.py"), "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            assert server.stdout is not None
            assert any("listening" in line for line in server.stdout)
            asked = {"state": "Wo ist mein Paket?", "question": "Which language is it?", "labels": ["en", "de"]}
            answered = post(port, asked)
            assert answered["label"] in ("en", "de") and answered["prompt_tokens"] > 0
            with pytest.raises(urllib.error.HTTPError, match="400"):
                post(port, {**asked, "labels": []})
        finally:
            server.send_signal(signal.SIGINT)
            ends = time.monotonic() + 60
            while server.poll() is None and time.monotonic() < ends:
                time.sleep(0.2)
            server.kill()


def post(port: int, body: object) -> dict[str, object]:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/", json.dumps(body).encode(), method="POST")
    request.add_header("content-type", "application/json")
    with urllib.request.urlopen(request, timeout=120) as response:
        found: dict[str, object] = json.load(response)
        return found
