"""lm-eval: the model ``prelude``.

    python -m prelude.integrations.lm_eval run --model prelude --model_args pretrained=DIR --tasks arc_easy
    lm_eval.simple_evaluate(model=PreludeLM(engine=engine), tasks=[...])

pip install 'prelude-engine[lm-eval]' (lm_eval 0.4.13). Rows that are too long are cut as by lm-eval's own HF
backend: from the left, and never in the continuation. Continuations of one context share its tokens, and one row of
the LM head if each of them is one token.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from lm_eval import utils
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import (
    handle_stop_sequences,
    has_bos_prefix,
    normalize_gen_kwargs,
    postprocess_generated_text,
)

from prelude.api.engine import Engine
from prelude.errors import ConfigError, InvalidRequest, shown
from prelude.tasks import Generate, Loglikelihood, SamplingParams
from prelude.tokenizer import ChatTemplateError
from prelude.values.config import EngineConfig

log = logging.getLogger(__name__)

_SAMPLING = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed")


@register_model("prelude")
class PreludeLM(TemplateLM):
    """``engine``, or ``pretrained`` (a directory or hub name; the packaged model without one) with ``dtype``,
    ``device`` and ``revision`` as of ``Engine.from_pretrained``. ``max_length`` lowers the longest row.
    ``add_bos_token``: None leaves it to the tokenizer's own post-processor, and True and False take its place: a text
    begins with the BOS token or has no special token. A continuation that has no token of its own is refused, and a
    system message that the chat template refuses is left out with a warning. ``batch_size`` is taken and not used:
    the engine plans its own steps."""

    def __init__(
        self,
        pretrained: str | None = None,
        *,
        engine: Engine | None = None,
        dtype: str = "auto",
        device: str | None = None,
        revision: str | None = None,
        max_length: int | None = None,
        max_gen_toks: int = 256,
        add_bos_token: bool | None = None,
        batch_size: Any = None,
        max_batch_size: Any = None,
    ) -> None:
        super().__init__()
        if engine is not None and not isinstance(engine, Engine):
            raise ConfigError("engine must be an Engine; an AsyncEngine has one as its .engine")
        if engine is None:
            config = EngineConfig(max_length=None if max_length is None else int(max_length))
            engine = Engine.from_pretrained(
                pretrained, dtype=dtype, device=_device(device), revision=revision, config=config
            )
        self.engine = engine
        self.tokenizer = engine.tokenizer
        self.max_length = min(engine.max_length, int(max_length or engine.max_length))
        self.max_gen_toks = int(max_gen_toks)
        self._add_bos = add_bos_token

    # -------------------------------------------------------------- tokens

    @property
    def eot_token_id(self) -> int:
        return 0 if self._end is None else self._end  # lm-eval asks for a number

    @property
    def prefix_token_id(self) -> int:
        bos = self._special("bos_token", self.engine.model_info.bos_token_id)
        return self.eot_token_id if bos is None else bos

    @property
    def _end(self) -> int | None:
        return self._special("eos_token", min(self.engine.eos_token_ids, default=None))

    def _special(self, name: str, other: int | None) -> int | None:
        token = getattr(self.tokenizer, name, None)
        found = None if token is None else self.tokenizer.token_to_id(token)
        return other if found is None else int(found)

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        special = add_special_tokens
        if special is None:
            special = self._add_bos is not False
            if has_bos_prefix(string, self.tokenizer.decode([self.prefix_token_id], skip_special_tokens=False)):
                special = False
        # Said either way, the setting takes the place of the post-processor, as transformers does it.
        found: list[int] = self.tokenizer.encode_array(string, special and self._add_bos is None).tolist()
        begins = self._special("bos_token", None) if special and self._add_bos else None
        return found if begins is None else [begins, *found]

    # -------------------------------------------------------------- likelihoods

    def loglikelihood(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        for request in requests:
            if not any(request.args):
                raise _nothing_to_score(request.args)
        found: list[tuple[float, bool]] = super().loglikelihood(requests, disable_tqdm=disable_tqdm)
        return found

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], disable_tqdm: bool = False, **kwargs: Any
    ) -> list[tuple[float, bool]]:
        tasks = []
        for key, context, continuation in requests:
            if not continuation:
                raise _nothing_to_score(key)
            if len(continuation) > self.max_length:
                raise InvalidRequest(
                    f"{len(continuation)} tokens of continuation; the limit is {self.max_length}",
                    field="continuation",
                )
            kept = (context + continuation)[-(self.max_length + 1) :][: -len(continuation)]
            tasks.append(Loglikelihood(kept or [self.prefix_token_id], continuation))
        found = self.engine.run_many(tasks, progress=not disable_tqdm)
        results = [(one.total, one.is_greedy) for one in found]
        for (key, _, _), result in zip(requests, results):
            if key is not None:
                self.cache_hook.add_partial("loglikelihood", key, result)
        return results

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        windows: list[tuple[None, list[int], list[int]]] = []
        counts = []
        for request in requests:
            [text] = request.args
            found = utils.get_rolling_token_windows(
                token_list=self.tok_encode(text),
                prefix_token=self.prefix_token_id,
                max_seq_len=self.max_length,
                context_len=1,
            )
            own = [(None, *utils.make_disjoint_window(window)) for window in found]
            windows += own
            counts.append(len(own))
        scored = iter(self._loglikelihood_tokens(windows, disable_tqdm=disable_tqdm))
        totals = []
        for request, count in zip(requests, counts):
            total = sum(next(scored)[0] for _ in range(count))
            totals.append(total)
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, total)
        return totals

    # -------------------------------------------------------------- text

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        eos = None if self._end is None else self.tokenizer.decode([self._end], skip_special_tokens=False)
        tasks, stops = [], []
        for request in requests:
            context, given = request.args
            kwargs = normalize_gen_kwargs(given, self.max_gen_toks)
            until = [text for text in handle_stop_sequences(kwargs.pop("until", None), eos=eos) if text]
            longest = int(kwargs.pop("max_gen_toks"))
            kwargs.pop("do_sample", None)
            kwargs = {name: value for name, value in kwargs.items() if value is not None}
            sampling = {name: kwargs.pop(name) for name in _SAMPLING if name in kwargs}
            if kwargs:
                raise InvalidRequest(
                    f"{sorted(kwargs)} are not offered; there are {', '.join(_SAMPLING)}", field="gen_kwargs"
                )
            if not 0 < longest < self.max_length:
                raise InvalidRequest(
                    f"{longest}; it takes 1 to {self.max_length - 1}", field="gen_kwargs.max_gen_toks"
                )
            ids = self.tok_encode(context)[-(self.max_length - longest) :] or [self.prefix_token_id]
            tasks.append(
                Generate(ids, SamplingParams(max_tokens=longest, stop=until, **{"temperature": 0.0, **sampling}))
            )
            stops.append(until)
        texts = []
        for request, until, found in zip(requests, stops, self.engine.run_many(tasks, progress=not disable_tqdm)):
            text = postprocess_generated_text(found.text, until, None)
            self.cache_hook.add_partial("generate_until", request.args, text)
            texts.append(text)
        return texts

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        from prelude.tokenizer.chat import apply_chat_template

        names = ("bos_token", "eos_token", "pad_token")
        tokens = {name: getattr(self.tokenizer, name, None) for name in names}

        def rendered(history: list[dict[str, str]]) -> str:
            return apply_chat_template(
                history,
                self.tokenizer.chat_template,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=not add_generation_prompt,
                **{name: token for name, token in tokens.items() if token is not None},
            )

        try:
            return rendered(chat_history)
        except ChatTemplateError as error:
            rest = [message for message in chat_history if message["role"] != "system"]
            if len(rest) == len(chat_history):
                raise
            log.warning("the chat template refuses these messages (%s); the system's are left out", error)
            return rendered(rest)

    @property
    def tokenizer_name(self) -> str:
        return str(self.engine.model_info.path).replace("/", "__")


def _nothing_to_score(pair: Any) -> InvalidRequest:
    """lm-eval's own backends stop here too: a score of 0.0 would win against every other one."""
    return InvalidRequest(
        f"the continuation of {shown(pair)} has no token of its own: the context alone has as many tokens as both",
        field="continuation",
    )


def _device(name: str | None) -> str:
    """lm-eval names devices as torch does."""
    return "auto" if not name else name.partition(":")[0]


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()
