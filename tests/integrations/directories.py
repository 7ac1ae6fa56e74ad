"""Small model directories as sentence-transformers saves them, each kind once, and copies with other settings."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from tests.checkpoints import make_checkpoint
from tests.encoders import write_encoder

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LETTERS = [chr(code) for code in (*range(33, 127), 0xC9, 0xE9, 0x3C3, 0x3C2, 0x3A3, 0x4E2D, 0x6587)]
ROWS = 280
"""Of the encoders, some more than the vocabulary has."""
POSITIONS = 64
PAIR_TEMPLATE = (
    "{% for m in messages %}{% if m['role'] == 'system' %}Rule: {{ m['content'] }}\n{% endif %}{% endfor %}"
    "Q: {{ messages | selectattr('role', 'eq', 'query') | map(attribute='content') | first }}\n"
    "D: {{ messages | selectattr('role', 'eq', 'document') | map(attribute='content') | first }}\nAnswer:"
)
TURNS = "{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }}\n{% endfor %}End"
PAD = "<|endoftext|>"


def word_pieces() -> Tokenizer:
    """Letters, which cases and accents tell apart, and a few words."""
    words = ["hello", "harbour", "quiet", "##er", "[x]"]
    vocab = {word: n for n, word in enumerate([*SPECIAL, *LETTERS, *(f"##{one}" for one in LETTERS), *words])}
    made = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    made.post_processor = processors.TemplateProcessing(
        "[CLS]:0 $A:0 [SEP]:0", "[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1", [("[CLS]", 2), ("[SEP]", 3)]
    )
    made.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    return made


def bytes_file() -> Tokenizer:
    """RoBERTa's kind, without merges."""
    tokens = ["<s>", "<pad>", "</s>", "<unk>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    made = Tokenizer(models.BPE({token: n for n, token in enumerate(tokens)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    made.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in tokens[:4]])
    return made


NAMED = {"unk_token": "[UNK]", "sep_token": "[SEP]", "pad_token": "[PAD]", "cls_token": "[CLS]"}
NAMED |= {"mask_token": "[MASK]"}
ROBERTA = {"unk_token": "<unk>", "sep_token": "</s>", "pad_token": "<pad>", "cls_token": "<s>", "bos_token": "<s>"}


def write_plain(path: Path, kind: str) -> Path:
    """A checkpoint of transformers with its tokenizer; ``kind``: a name of ``KINDS``."""
    settings: dict[str, Any] = {"tokenizer_class": "BertTokenizer", **NAMED}
    sizes: dict[str, Any] = {"vocab_size": ROWS, "max_position_embeddings": POSITIONS}
    if kind in ("scores", "labels"):
        labels = 1 if kind == "scores" else 3
        write_encoder(path, family="bert", kind="ForSequenceClassification", num_labels=labels, **sizes)
    elif kind == "vectors":
        write_encoder(path, family="bert", **sizes)
    elif kind == "roberta":
        write_encoder(path, family="roberta", pad_token_id=1, bos_token_id=0, eos_token_id=2, **sizes)
        settings = {"tokenizer_class": "RobertaTokenizer", "eos_token": "</s>", **ROBERTA}
        settings["model_max_length"] = POSITIONS - 2  # the library reads past the table with more
    else:
        more = {"kind": "ForSequenceClassification", "num_labels": 1} if kind == "reward" else {}
        make_checkpoint(path, max_position_embeddings=2 * POSITIONS, **more)
        template = TURNS if kind == "reward" else PAIR_TEMPLATE
        settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": PAD, "pad_token": PAD}
        settings |= {} if kind == "lm" else {"chat_template": template}
    if kind in ("vectors", "scores", "labels", "roberta"):
        (bytes_file() if kind == "roberta" else word_pieces()).save(str(path / "tokenizer.json"))
    change(path, "tokenizer_config", settings)
    return path


def write_saved(path: Path, kind: str) -> Path:
    """The same as the library saves it."""
    import sentence_transformers
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.cross_encoder.modules import LogitScore

    plain, options = write_plain(path / "plain", kind), {"device": "cpu", "model_kwargs": {"dtype": "float32"}}
    if kind in ("vectors", "roberta"):
        made = sentence_transformers.SentenceTransformer(str(plain), **options)
    elif kind == "recipe":
        body = Transformer(str(plain), transformer_task="text-generation", model_kwargs=options["model_kwargs"])
        made = sentence_transformers.CrossEncoder(modules=[body, LogitScore(300, 400)], device="cpu")
    else:
        made = sentence_transformers.CrossEncoder(str(plain), **options)
    made.save_pretrained(str(path / "saved"), create_model_card=False)
    # The library's own tokenizer files hold what the settings below are to say.
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(plain / name, path / "saved" / name)
    return path / "saved"


def change(path: Path, name: str, content: Mapping[str, Any] | Callable[[Any], Any] | None) -> None:
    """``content`` over the JSON file ``name``, or the function of what is in it; None takes the file away."""
    file = path / f"{name}.json"
    if content is None:
        file.unlink()
        return
    before = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    after = content(before) if callable(content) else {**before, **content}
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(after), encoding="utf-8")
