"""The files that loading reads: plain files of the model directory, of bounded size, and those that docs/SERVICES.md
lists beside."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prelude.tokenizer import Tokenizer, TokenizerConfigWarning

from prelude import Engine
from prelude.errors import ModelError, PreludeError
from prelude.models.files import ModelDirectory
from tests.checkpoints import make_checkpoint

ROOT = Path(__file__).resolve().parents[2]
CONTENTS = {
    "tokenizer.json": None, "tokenizer_config.json": "{}", "special_tokens_map.json": "{}",
    "chat_template.jinja": "{{ messages[0].content }}", "decision_template.json": "{}", "modules.json": "[]",
    "1_Pooling/config.json": "{}", "config.json": None, "generation_config.json": None, "model.safetensors": None,
}  # fmt: skip
"""Files that loading reads; None where the checkpoint has them."""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = make_checkpoint(tmp_path_factory.mktemp("model"))
    (path / "1_Pooling").mkdir()
    for name, content in CONTENTS.items():
        if content is not None and name != "modules.json":  # with it the folder 1_Pooling would not be looked for
            (path / name).write_text(content, encoding="utf-8")
    return path


@pytest.fixture
def model(checkpoint: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(checkpoint, tmp_path / "model"))


def load(model: Path, **options: object) -> None:
    Engine.from_pretrained(model, **options).close()  # type: ignore[arg-type]


def link_out(file: Path) -> None:
    outside = next(folder for folder in file.parents if folder.name == "model").with_name("outside")
    if file.exists():
        file.rename(outside)
    else:
        outside.write_text("[]", encoding="utf-8")
    file.symlink_to(outside)


def pipe(file: Path) -> None:
    file.unlink(missing_ok=True)
    os.mkfifo(file)


def device(file: Path) -> None:
    file.unlink(missing_ok=True)
    file.symlink_to("/dev/zero")


@pytest.mark.fault(41)
@pytest.mark.parametrize("name", CONTENTS)
@pytest.mark.parametrize("spoil", [link_out, pipe, device])
@pytest.mark.timeout(120)
def test_only_plain_files_of_the_directory_are_read(spoil: Callable[[Path], None], name: str, model: Path) -> None:
    spoil(model / name)
    with pytest.raises(ModelError, match=rf"{re.escape(name)}: (a link that leads out|not a regular file)"):
        load(model)


@pytest.mark.parametrize("name", CONTENTS)
def test_links_that_the_caller_vouches_for(name: str, model: Path) -> None:
    link_out(model / name)
    load(model, follow_links=True)


@pytest.mark.parametrize("name", CONTENTS)
@pytest.mark.timeout(120)
def test_followed_links_end_at_plain_files_too(name: str, model: Path) -> None:
    device(model / name)
    with pytest.raises(ModelError, match=rf"{re.escape(name)}: not a regular file"):
        load(model, follow_links=True)


def test_follow_links_is_true_or_false(model: Path) -> None:
    with pytest.raises(PreludeError, match="follow_links=1 is not True or False"):
        load(model, follow_links=1)


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "1_Pooling/../../outside"])
@pytest.mark.parametrize("links", [False, True])
def test_names_that_lead_out_of_the_directory(name: str, links: bool, tmp_path: Path) -> None:
    (tmp_path / "model" / "1_Pooling").mkdir(parents=True)
    (tmp_path / "outside").write_text("{}", encoding="utf-8")
    with pytest.raises(ModelError, match="leads out of the model directory"):
        ModelDirectory(tmp_path / "model", links).read(name, 100)


@pytest.mark.fault(30)
@pytest.mark.parametrize(
    "name", [name for name in CONTENTS if name.endswith((".json", ".jinja")) and name != "tokenizer.json"]
)
def test_files_of_bounded_size(name: str, model: Path) -> None:
    (model / name).touch()
    os.truncate(model / name, 1 << 40)  # sparse
    with pytest.raises(
        PreludeError, match=rf"{re.escape(name)}: cannot be read: larger than the limit of [\d,]+ bytes"
    ):
        load(model)


# -- the tokenizer alone ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"])
@pytest.mark.parametrize("spoil", [pipe, device])
@pytest.mark.timeout(120)
def test_settings_that_are_no_plain_files_are_left_out(spoil: Callable[[Path], None], name: str, model: Path) -> None:
    spoil(model / name)
    with pytest.warns(TokenizerConfigWarning, match=rf"{re.escape(name)} is not used: not a regular file") as said:
        Tokenizer.from_file(model / "tokenizer.json")
    assert said[0].filename == __file__, "it names the line of the caller"


@pytest.mark.parametrize("spoil", [pipe, device])
@pytest.mark.timeout(120)
def test_a_tokenizer_file_is_a_plain_file(spoil: Callable[[Path], None], model: Path) -> None:
    spoil(model / "tokenizer.json")
    with pytest.raises(OSError, match=r"not a regular file.*tokenizer\.json"):
        Tokenizer.from_file(model / "tokenizer.json")
    with pytest.raises(OSError, match="not a regular file"):
        Tokenizer.from_tiktoken(model / "tokenizer.json", r"\S+")


def test_the_tokenizer_alone_follows_links(model: Path) -> None:
    """Its caller named the file; caches of other libraries are made of links."""
    link_out(model / "tokenizer.json")
    assert Tokenizer.from_file(model / "tokenizer.json").encode("a").ids


# -- the promises of docs/SERVICES.md ------------------------------------------------------------------


def documented(heading: str) -> set[str]:
    """The names in the first column of the table under ``heading``."""
    text = (ROOT / "docs" / "SERVICES.md").read_text(encoding="utf-8")
    section = text.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return {
        name
        for row in section.splitlines()
        if row.startswith("| `")
        for name in re.findall(r"`(\w+)`", row.split("|")[1])
    }


def variables_read(path: Path) -> Iterator[str]:
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        yield from re.findall(r'getenv\("(\w+)"\)', text)
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv", "environb"):
            yield from re.findall(r'"((?!O_|SC_|TRUE)[A-Z][A-Z_]{3,})"', text)
            return


def test_the_environment_that_is_read_is_documented() -> None:
    folders = ("prelude", "tokenizer", "cuda", "_native")
    files = [file for folder in folders for file in (ROOT / folder).rglob("*.*") if "tests" not in file.parts]
    sources = [file for file in files if file.suffix in (".py", ".pyx", ".pxi", ".hpp", ".cpp")]
    found = {name for file in sources for name in variables_read(file)}
    assert found == documented("Files and environment")


OPENED = """
import json, os, sys
opened = []
sys.modules["dill"] = None  # where it is installed torch imports it, and its import writes a temporary file
sys.addaudithook(lambda event, arguments: opened.append(arguments) if event == "open" else None)
from prelude import Engine
with Engine.from_pretrained(sys.argv[1]) as engine:
    engine.complete("a")
paths = [(str(path), mode) for path, mode, flags in opened if isinstance(path, (str, bytes, os.PathLike))]
code = tuple(os.path.realpath(folder) for folder in {*sys.path, sys.prefix, sys.base_prefix} if folder)
outside = {
    path for path, mode in paths
    if not os.path.realpath(path).startswith((*code, "/proc/", "/sys/", "/dev/null", os.path.realpath(sys.argv[1])))
}
written = {path for path, mode in paths if isinstance(mode, str) and set(mode) & set("wax+")}
print(json.dumps([sorted(outside), sorted(written)]))
"""


@pytest.mark.fault(49)
def test_loading_opens_files_of_the_directory_and_the_kept_tables_alone(model: Path, tmp_path: Path) -> None:
    """Beside Python's imports and the kernel's files about the machine."""
    cache = tmp_path / "cache"
    done = subprocess.run(
        [sys.executable, "-B", "-c", OPENED, str(model)],
        env={"PYTHONPATH": str(ROOT), "PRELUDE_TOKENIZER_CACHE": str(cache), "PATH": os.environ.get("PATH", "")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    outside, written = json.loads(done.stdout.splitlines()[-1])
    assert [path for path in [*outside, *written] if not path.startswith(str(cache))] == []
