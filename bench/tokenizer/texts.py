"""The texts of the tokenizer benches: fixed inputs, and text of several scripts that no cache has seen.

    python -m bench tokenizer_texts FOLDER [--man DIR ...]

writes FOLDER/{code_py,en,zh,ja,ru,multi}.txt from files of the machine: the sources of Python's standard library, and
the manual pages below /usr/share/man and each DIR (on Debian: ``apt-get download manpages-zh manpages-ja
manpages-ru`` and ``dpkg-deb -x`` of each). Lines that come again in another file are left out. So are lines with less
than half of their characters in the script of the language, since some pages are not translated. Any folder of such
files will do, but a text with less than half of its characters in that script is refused.

The fixed inputs have the names and lengths of a published table of 17; five more are natural text, from the folder.
Most of the 17 repeat a few sentences, which flatters caches of words: hence the natural ones, three whose words or
turns do not come again, and the streamed table of ``bench tokenizer``.
"""

from __future__ import annotations

import gzip
import random
import re
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from bench.command_line import options_parser

ENGLISH = (
    "The committee will meet on Tuesday to discuss the budget, and everyone who has an opinion about the new "
    "building should send it in writing before then. Last year's figures weren't final; this year's are. "
)
CHINESE = "今天的天气非常好,我们决定去公园散步。孩子们在草地上奔跑,老人们坐在长椅上聊天。"
CODE = (
    "def merge(left: list[int], right: list[int]) -> list[int]:\n"
    '    """Two sorted lists as one."""\n'
    "    out, i, j = [], 0, 0\n"
    "    while i < len(left) and j < len(right):\n"
    "        if left[i] <= right[j]:\n"
    "            out.append(left[i]); i += 1\n"
    "        else:\n"
    "            out.append(right[j]); j += 1\n"
    "    return out + left[i:] + right[j:]\n\n"
)
MIXED = "Hello, wörld! Привет, мир. こんにちは世界 안녕하세요 שלום עולם مرحبا 🙂👍🏽 naïve café 12,345.67 € "
TURN = "<|im_start|>user\nWhat is {0} times {1}?<|im_end|>\n<|im_start|>assistant\nIt is {2}.<|im_end|>\n"
QUESTIONS = ("Could you explain what this does", "Why is that so", "Please write it again without the loop")
ANSWERS = ("It takes two sorted lists and gives one", "Both are read once, from the left", "Here it is")

SCRIPTS = {
    "zh": ("Han", re.compile(r"[\u3000-\u303f\u3400-\u9fff\uff00-\uffef]")),
    "ja": ("Han and kana", re.compile(r"[\u3000-\u30ff\u3400-\u9fff\uff00-\uffef]")),
    "ru": ("Cyrillic", re.compile(r"[\u0400-\u04ff]")),
}
MOSTLY = 0.5  # of the characters of a line or of a text that are not white space
LEAST = 100_000  # characters of a text that is made of the machine's files

NATURAL = (("code_py", 16_384), ("en", 32_768), ("en", 200_000), ("zh", 32_768), ("multi", 32_768))
MANUALS = Path("/usr/share/man")
SIZE = 1_600_000  # characters of each text of the folder, about


def cut(text: str, characters: int) -> str:
    return (text * (characters // len(text) + 1))[:characters]


def unique(characters: int, seed: int) -> str:
    """Words that do not come again."""
    rng = random.Random(seed)
    words: list[str] = []
    size = 0
    while size < characters:
        words.append("".join(rng.choices("etaoinshrdlucmfwypvbgk", k=rng.randint(2, 11))))
        size += len(words[-1]) + 1
    return " ".join(words)[:characters]


def anything(characters: int, seed: int) -> str:
    rng = random.Random(seed)
    pools = ("abcdefghij", "0123456789", " \n\t", "éüñçß", "你好世界天气", "привет", "🙂👍🏽", "'\"<>|_-.,")
    return "".join(rng.choice(rng.choice(pools)) for _ in range(characters))


def chat(characters: int, seed: int) -> str:
    """Turns of 60 to 600 characters between control tokens, prose and code, no two alike."""
    rng = random.Random(seed)
    parts = ["<|im_start|>system\nYou are a careful engineer. Answer in a few words.<|im_end|>\n"]
    size = 0
    while size < characters:
        at, more, n = rng.randrange(200), rng.randrange(400), len(parts)
        question = f"{rng.choice(QUESTIONS)}, {n}? {cut(ENGLISH, 900)[at : at + 40 + more]}"
        answer = (
            f"{rng.choice(ANSWERS)}: {cut(ENGLISH, 900)[more : more + 60 + at]}\n```python\n{CODE[: 40 + at]}\n```"
        )
        parts.append(f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n{answer}<|im_end|>\n")
        size += len(parts[-1])
    return "".join(parts)[:characters]


def dense_chat(turns: int) -> str:
    """A control token every 25 characters."""
    return "".join(TURN.format(i, i + 7, i * (i + 7)) for i in range(turns))


def inputs(quick: bool, natural: dict[str, str] | None = None) -> dict[str, str]:
    """The fixed inputs by name; the natural ones are the first characters of the texts in ``natural``."""
    texts = {
        "tiny": "Hello",
        "short_english": cut(ENGLISH, 51),
        "short_chinese": cut(CHINESE, 90),
        "medium_prose": cut(ENGLISH, 674),
        "code_snippet": cut(CODE, 470),
        "mixed_multilingual": cut(MIXED, 641),
        "long_repeat": cut("All work and no play makes Jack a dull boy. ", 2_025),
        "long_unique": unique(4_000, 1),
        "very_long": cut(ENGLISH, 8_000),
        "chat_template": chat(212, 5),
    }
    if quick:
        return texts | {"random_4K": anything(4_000, 2)}
    texts |= {
        "long_32K": cut(ENGLISH, 32_000),
        "long_64K": cut(ENGLISH, 64_000),
        "long_200K": cut(ENGLISH, 200_000),
        "long_code_16K": cut(CODE, 16_000),
        "multi_turn_chat_8K": chat(21_370, 6),
        "multi_turn_chat_32K": chat(85_480, 7),
        "long_chinese_32K": cut(CHINESE, 31_998),
    }
    for name, characters in NATURAL:
        if natural and name in natural:
            texts[f"natural_{name}_{characters // 1000}K"] = natural[name][:characters]
    return texts | {
        "random_4K": anything(4_000, 2),
        "long_200K_unique": unique(200_000, 3),
        "dense_chat_16K": dense_chat(230),
    }


def texts_of(folder: Path | None) -> dict[str, str]:
    """The .txt files of a folder by name."""
    files = sorted(folder.glob("*.txt")) if folder else []
    texts = {path.stem: path.read_text(encoding="utf-8", errors="replace") for path in files}
    for name, text in texts.items():
        if text and share(name, text) < MOSTLY:
            raise SystemExit(f"the text {name} is not mostly {SCRIPTS[name][0]}: {described(name, text)}")
    return texts


def share(name: str, text: str) -> float:
    """Of the script of a text's name among its characters that are not white space; 1 for other names."""
    if name not in SCRIPTS:
        return 1.0
    return len(SCRIPTS[name][1].findall(text)) / max(1, len("".join(text.split())))


def described(name: str, text: str) -> str:
    script = f", {share(name, text):.0%} {SCRIPTS[name][0]}" if name in SCRIPTS else ""
    return f"{len(text)} characters{script}"


def texts_of_this_machine() -> dict[str, str]:
    """The texts of :func:`made`, without those that this machine has few files for."""
    with tempfile.TemporaryDirectory() as folder:
        for name, size in made(Path(folder), [path for path in (MANUALS,) if path.is_dir()], SIZE):
            print(f"  text {name}: {size} characters", file=sys.stderr)
        return {name: text for name, text in texts_of(Path(folder)).items() if len(text) >= LEAST}


def unseen(text: str, characters: int) -> str:
    """The end of a text: the natural inputs, which take its beginning, do not have it."""
    return text[max(0, len(text) - characters) :]


# ---- making the folder

_REQUEST = re.compile(r"^\.(?:SH|SS|TP|IP|B|I|BR|BI|IB|RB)[ \t]*", re.M)
_ROFF = re.compile(r"^[.'].*$|\\f(?:[A-Z]|\([A-Z]{2})|\\-", re.M)


def manual(path: Path) -> str:
    """The words of a manual page, most of its markup dropped."""
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    text = _REQUEST.sub("", data.decode("utf-8"))
    return _ROFF.sub(lambda m: "-" if m.group() == "\\-" else "", text)


def documents(name: str, paths: Iterable[Path], size: int) -> Iterator[str]:
    """Texts of the files in a fixed random order until there is enough; no long line comes twice, none is of another
    script."""
    order = sorted(path for path in paths if path.is_file() and not path.is_symlink())
    random.Random(1).shuffle(order)
    seen: set[str] = set()
    for path in order:
        try:
            text = path.read_text(encoding="utf-8") if path.suffix == ".py" else manual(path)
        except (OSError, ValueError):
            continue  # another encoding
        lines = [line for line in text.split("\n") if len(line) <= 30 or line.strip() not in seen]
        lines = [line for line in lines if not line.strip() or share(name, line) >= MOSTLY]
        seen.update(line.strip() for line in lines if len(line) > 30)
        text = re.sub(r"\n{3,}", "\n\n", "\n".join(lines))
        if len(text) < 400:
            continue
        yield text
        size -= len(text)
        if size < 0:
            return


def made(folder: Path, manuals: Sequence[Path], size: int) -> Iterator[tuple[str, int]]:
    def pages(*languages: str) -> Iterator[Path]:
        for root in manuals:
            for language in languages:
                yield from root.glob(f"{language}/man?/*")

    others = [p.name for root in manuals for p in root.iterdir() if p.is_dir() and not p.name.startswith("man")]
    library = Path(sysconfig.get_path("stdlib"))
    kinds: dict[str, Iterable[Path]] = {
        "code_py": library.glob("[a-z]*/*.py"),
        "en": (path for root in manuals for path in root.glob("man?/*")),
        "zh": pages("zh_CN", "zh_TW"),
        "ja": pages("ja"),
        "ru": pages("ru"),
        "multi": pages(*sorted(set(others))),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, paths in kinds.items():
        text = "".join(documents(name, paths, size))
        (folder / f"{name}.txt").write_text(text, encoding="utf-8")
        yield name, len(text)


def main() -> int:
    parser = options_parser(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--man", type=Path, action="append", default=[MANUALS])
    parser.add_argument("--size", type=int, default=SIZE, help="characters of each text, about")
    options = parser.parse_args()
    for name, size in made(options.folder, options.man, options.size):
        print(f"{name}: {size} characters")
    return 0


if __name__ == "__main__":
    sys.exit(main())
