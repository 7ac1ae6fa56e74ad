"""The result of each kernel, in torch on the host: one function a kernel, of the same name and arguments, with
``Pointer``s where it takes addresses. ``n`` is the grid's first size."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from prelude.cuda import kernels
from torch import Tensor

from prelude.readouts.batch import LogitEdits, SampleRows
from prelude.readouts.draw import edited
from prelude.readouts.sample import sample_token


def attention(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    """``(out, lse)`` of q [n, heads, D] over k, v [m, kv_heads, D]; log-sum-exps in base 2, -inf without keys."""
    n, heads, width = q.shape
    m = k.shape[0]
    if m == 0:
        return torch.zeros(q.shape), torch.full((n, heads), float("-inf"))
    q, k, v = q.float(), *(x.float().repeat_interleave(heads // k.shape[1], 1) for x in (k, v))
    scores = torch.einsum("nhd,mhd->nhm", q, k) * width**-0.5
    if causal:
        hidden = torch.arange(m)[None, :] > torch.arange(n)[:, None] + (m - n)
        scores.masked_fill_(hidden[:, None, :], float("-inf"))
    out = torch.einsum("nhm,mhd->nhd", scores.softmax(-1), v)
    return out, scores.logsumexp(-1) / float(np.log(2.0))


def _normed(x: Tensor, gain: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * gain


def embed_norm(
    n: int, ids: Any, pending_tokens: Any, table: Any, gain: Any, eps: float, width: int, x: Any, normed: Any
) -> None:
    for row, token in enumerate(ids.at(n).tolist()):
        if token < 0:
            token = int(pending_tokens.at(-token)[-1])
        x.at(n, width)[row] = table.at((token + 1) * width)[token * width :].float()
    normed.at(n, width).copy_(_normed(x.at(n, width), gain.at(width), eps))


def rms_norm(n: int, x: Any, gain: Any, eps: float, width: int, normed: Any) -> None:
    normed.at(n, width).copy_(_normed(x.at(n, width), gain.at(width), eps))


def _rows(rows: Any, n: int, source: Any, width: int) -> Tensor:
    where = rows.at(n).long()
    return source.at(int(where.max()) + 1, width)[where]


def gather_norm(
    n: int, rows: Any, x: Any, gain: Any, eps: float, width: int, picked: Any, normed: Any, exact: Any
) -> None:
    chosen = _rows(rows, n, x, width)
    out = _normed(chosen, gain.at(width), eps)
    for place, values in ((picked, chosen), (normed, out), (exact, out)):
        if place is not None:
            place.at(n, width).copy_(values)


def gather(n: int, rows: Any, source: Any, width: int, to: Any) -> None:
    to.at(n, width).copy_(_rows(rows, n, source, width))


def pool_rows(n: int, exact: Any, indptr: Any, before: Any, mode: int, width: int, stride: int, out: Any) -> None:
    edges = indptr.at(n + 1).tolist()
    rows = exact.at(edges[-1], width).double()
    to = out.strided((n, width), (stride, 1))
    for i in range(n):
        own = rows[edges[i] : edges[i + 1]]
        first = 1 if before is None else 1 + int(before.at(n)[i])
        weights = torch.arange(first, first + len(own), dtype=torch.float64)
        to[i] = {
            "mean": lambda own: own.mean(0),
            "max": lambda own: own.amax(0),
            "mean_sqrt_len_tokens": lambda own: own.sum(0) / len(own) ** 0.5,
            "weightedmean": lambda own, weights=weights: weights @ own / weights.sum(),
            "cls": lambda own: own[0],
            "last": lambda own: own[-1],
        }[kernels.POOLINGS[mode]](own)


def qk_rope(n: int, *given: Any) -> None:
    heads, queries, keys, values, positions, rope_table, q_gain, k_gain, eps, slots, pool_k, pool_v = given
    width, count = heads.width, queries + keys + values
    lines = heads.at(n, count, width)
    where = positions.at(n).long()
    turn = rope_table.at(int(where.max()) + 1, width)[where][:, None]
    cosine, sine = turn[..., : width // 2], turn[..., width // 2 :]
    for part, gain in ((slice(0, queries), q_gain), (slice(queries, queries + keys), k_gain)):
        x = lines[:, part].float()
        if gain is not None:
            x = _normed(x, gain.at(width), eps)
        a, b = x[..., : width // 2], x[..., width // 2 :]
        lines[:, part] = torch.cat([a * cosine - b * sine, b * cosine + a * sine], -1).to(lines.dtype)
    if slots is None:
        return
    for token, slot in enumerate(slots.at(n).tolist()):
        if slot >= 0:
            pool_k.at((slot + 1), keys, width)[slot] = lines[token, queries : queries + keys]
            pool_v.at((slot + 1), values, width)[slot] = lines[token, queries + keys :]


def silu_gate(n: int, gate_up: Any, inner: int, out: Any) -> None:
    both = gate_up.at(n, 2 * inner).float()
    out.at(n, inner).copy_(torch.nn.functional.silu(both[:, :inner]) * both[:, inner:])


def skinny_gemm(blocks: int, x: Any, weight: Any, width: int, rows: int, out: Any, added: Any) -> None:
    product = x.at(rows, width).float() @ weight.at(16 * blocks, width).float().t()
    if added is None:
        out.at(rows, 16 * blocks).copy_(product)
    else:
        added.at(rows, 16 * blocks).add_(product)


skinny_gemm_wide = skinny_gemm


def attend(blocks: int, *given: Any) -> None:
    q, q_stride, k, v, stride, pool_k, pool_v, keys, first, count, heads, kv_heads, scale, n, span, _, out = given
    width = q.width
    assert abs(scale - width**-0.5) < 1e-6
    queries = q.strided((n, heads, width), (q_stride, width, 1))
    ends = first.at(n) + count.at(n)
    counts = count.at(n).clamp(max=span).tolist()
    starts = [end - length for end, length in zip(ends.tolist(), counts)]
    listed = keys.at(max(at + length for at, length in zip(starts, counts))).long()

    def values(own: Any, pool: Any) -> Tensor:
        """Of every key that is listed."""
        found = torch.empty(len(listed), kv_heads, width)
        here, there = listed >= 0, listed < 0
        if here.any():
            rows = int(listed.max()) + 1
            found[here] = own.strided((rows, kv_heads, width), (stride, width, 1))[listed[here]].float()
        if there.any():
            slots = -1 - listed[there]
            found[there] = pool.at(int(slots.max()) + 1, kv_heads, width)[slots].float()
        return found

    ks, vs = values(k, pool_k), values(v, pool_v)
    to = out.at(n, heads, width)
    for row, (at, length) in enumerate(zip(starts, counts)):
        keys = slice(at, at + length)
        to[row] = attention(queries[row : row + 1], ks[keys], vs[keys], True)[0][0].to(to.dtype)


def row_stats(n: int, logits: Any, vocab: int, largest: Any, rest: Any, best: Any, finite: Any) -> None:
    lines = logits.at(n, vocab)
    most = lines.amax(1)
    largest.at(n).copy_(most)
    rest.at(n).copy_((lines - most[:, None]).exp().double().sum(1).log())
    if best is not None:
        best.at(n).copy_(lines.argmax(1))
    finite.at(n).copy_(lines.isfinite().all(1))


def pick(
    n: int, logits: Any, vocab: int, rows: Any, targets: Any, largest: Any, rest: Any, logprobs: Any, ranks: Any
) -> None:
    where, chosen = rows.at(n).long(), targets.at(n).long()
    pairs = (where >= 0).nonzero()[:, 0]
    if not len(pairs):
        return
    where, chosen = where[pairs], chosen[pairs]
    count = int(where.max()) + 1
    lines = logits.at(count, vocab)
    value = lines[where, chosen]
    relative = value.double() - largest.at(count)[where].double() - rest.at(count)[where]
    logprobs.at(n)[pairs] = relative.clamp(max=0.0)
    if ranks is None:
        return
    for pair, row, target in zip(pairs.tolist(), where.tolist(), chosen.tolist()):
        line = lines[row]
        ranks.at(n)[pair] = 1 + int((line > line[target]).sum() + (line[:target] == line[target]).sum())


def labels(n: int, normed: Any, head: Any, width: int, rows: Any, targets: Any, logits: Any) -> None:
    where, chosen = rows.at(n).long(), targets.at(n).long()
    pairs = (where >= 0).nonzero()[:, 0]
    if len(pairs):
        where, chosen = where[pairs], chosen[pairs]
        x = normed.at(int(where.max()) + 1, width)[where].double()
        w = head.at(int(chosen.max()) + 1, width)[chosen].double()
        logits.at(n)[pairs] = (x * w).sum(1)


def top(n: int, logits: Any, vocab: int, count: int, largest: Any, rest: Any, ids: Any, logprobs: Any) -> None:
    lines = logits.at(n, vocab)
    order = np.lexsort((np.broadcast_to(np.arange(vocab), (n, vocab)), -lines.numpy()), axis=1)[:, :count]
    chosen = torch.from_numpy(order.copy())
    ids.at(n, count).copy_(chosen)
    relative = lines.gather(1, chosen).double() - largest.at(n)[:, None].double() - rest.at(n)[:, None]
    logprobs.at(n, count).copy_(relative.clamp(max=0.0))


def edit(n: int, logits: Any, vocab: int, *lists: Any) -> None:
    repetition, presence, frequency, seen, seen_ids, counts, bias, bias_ids, values, allowed, allowed_ids = lists[:11]
    banned, banned_ids, _ = lists[11:]

    def csr(indptr: Any, *entries: Any) -> tuple[np.ndarray, ...]:
        edges = indptr.at(n + 1).numpy()
        return (edges, *(e.at(int(edges[-1])).numpy() for e in entries))

    edits = LogitEdits(
        *(x.at(n).numpy() for x in (repetition, presence, frequency)),
        *csr(seen, seen_ids, counts),
        *csr(bias, bias_ids, values),
        *csr(allowed, allowed_ids),
        *csr(banned, banned_ids),
    )
    lines = logits.at(n, vocab)
    for row in range(n):
        lines[row] = torch.from_numpy(edited(lines[row].numpy(), edits, row).astype(np.float32))


def sample(n: int, *given: Any) -> None:
    logits, vocab, *settings, finite, _, tokens = given
    temperature, top_k, top_p, min_p, uniforms = (values.at(n).numpy() for values in settings)
    nothing = np.zeros(n, np.int32)
    readout = SampleRows(nothing, temperature, top_k, top_p, min_p, nothing.astype(np.uint64), nothing)
    for row in range(n):
        line = logits.at(n, vocab)[row].numpy()
        drawn = sample_token(line, readout, row, float(uniforms[row])) if finite.at(n)[row] else 0
        tokens.at(n)[row] = drawn


def publish(n: int, source: Any, count: int, ticket: Any, stride: int, areas: int, host: Any) -> None:
    number, index = ticket.at(2).tolist()
    if not 0 <= index < areas or count > stride - 4:
        return
    area = host.at(areas * stride)[index * stride : (index + 1) * stride]
    area[4 : 4 + count] = source.at(count)
    area[0] = number
