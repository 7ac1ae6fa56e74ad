# Answers as the System One protocol writes them, and the confidence of an answer. Part of core.pyx.


def choice_confidence(list shares not None) -> float:
    """``prelude/confidence.py`` has the formula."""
    cdef Py_ssize_t n = len(shares)
    cdef double largest = -INFINITY, share, even
    if n < 2:
        return 1.0
    for share in shares:
        largest = max(largest, share)
    even = 1.0 / n
    return min(1.0, max(0.0, (largest - even) / (1 - even)))


def score_confidence(list shares not None) -> float:
    """``prelude/confidence.py`` has the formula."""
    cdef Py_ssize_t i, mode = 0, n = len(shares)
    cdef double distance = 0.0, spread = 0.0, share, largest = -INFINITY
    if n < 2:
        return 1.0
    for i in range(n):
        share = shares[i]
        if share > largest:
            largest, mode = share, i
    for i in range(n):
        share = shares[i]
        distance += share * abs(i - mode)
        spread += abs(i - (n - 1) / 2.0)
    return min(1.0, max(0.0, 1 - distance / (spread / n)))


def answer_body(question, answer) -> dict:
    """One answer. ``question`` is as it was sent: the legend returns its levels unchanged. Fields that the protocol
    does not have begin with ``x_``."""
    cdef str kind = answer.kind
    cdef double mass = answer.mass
    cdef dict body, shares
    if kind == "noul":
        body = {"type": kind, "noul": answer.probability}
    else:
        shares = dict(answer.probabilities)
        if kind == "choice":
            body = {"type": kind, "choice": answer.label, "probabilities": shares,
                    "confidence": choice_confidence(list(shares.values()))}
        else:
            body = {"type": kind, "score": answer.expected, "legend": dict(zip(shares, question["criteria"])),
                    "probabilities": shares, "confidence": score_confidence(list(shares.values()))}
    if mass == mass:
        body["x_label_mass"] = mass
    return body


def answer_bodies(tuple names not None, tuple questions not None, answers) -> dict:
    """The answers by the names of their questions."""
    cdef Py_ssize_t i, n = len(names)
    cdef dict bodies = {}
    if len(questions) != n or len(answers) != n:
        raise ValueError(f"{len(answers)} answers and {len(questions)} questions of {n} names")
    for i, answer in enumerate(answers):
        bodies[names[i]] = answer_body(questions[i], answer)
    return bodies


def summed_stats(parts) -> tuple:
    """(tokens of prompts, those that were cached, tokens that were cut) over all parts of a request."""
    cdef int64_t prompt = 0, cached = 0, cut = 0
    cdef RequestStats stats
    for part in parts:
        stats = part.stats
        prompt += stats.prompt_tokens
        cached += stats.cached_tokens
        cut += stats.truncated_tokens
    return prompt, cached, cut
