"""Tries this project's attention on the GPU before any engine uses it:

    python -m prelude.cuda.own_trial

The attention of each width of heads runs in a process of its own with a time limit, and is compared with float32
results of torch. The widths that passed are stored by GPU, kernel source and compiler, and no engine uses another: a
kernel that hangs or ends its process does so here.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from typing import TYPE_CHECKING

import torch
from prelude.cuda import own_attention
from prelude.cuda.kept_choices import Trials
from prelude.cuda.own_attention import in_float32, same

if TYPE_CHECKING:
    from prelude.cuda.device import Device

LIMIT = 40.0
"""Seconds of one process, with one compilation in it. ``bench gpu_first`` has time for two that hang and a third."""
_ENDING = 5.0
"""Seconds until a process is gone that was ended; one that waits for its device may stay for longer."""
_PROMPTS = ((128,), (1,), (256,), (17, 0, 1, 94), (5, 16, 33, 64, 130), (0, 77, 0, 100, 0))
"""Lengths of the prompts of a step. Some steps have three rows more, which belong to no prompt, and some have NaN in
every other prompt and in those rows: the prompts beside it must not see it."""


def attends(device: Device, head_dim: int) -> bool:
    """Return whether the attention of heads of ``head_dim`` is that of float32, for several heads that share keys."""
    return all(
        _attends(device, lengths, heads, kv_heads, head_dim, spare, broken)
        for lengths in _PROMPTS
        for broken in ((None, 0, 1) if len(lengths) > 1 else (None,))
        for heads, kv_heads in ((2, 2), (4, 2), (8, 1))
        for spare in (0, 3)
        if sum(lengths) + spare <= own_attention.ROWS
    )


def _attends(
    device: Device,
    lengths: tuple[int, ...],
    heads: int,
    kv_heads: int,
    head_dim: int,
    spare: int,
    broken: int | None = None,
) -> bool:
    """``broken``: the first prompt, or the second, of those whose rows are NaN; every other prompt with rows is."""
    rows = sum(lengths) + spare
    both = device.empty((rows, (heads + 2 * kv_heads) * head_dim), torch.bfloat16)
    both.normal_()
    ends = [sum(lengths[: i + 1]) for i in range(len(lengths))]
    prompts = [slice(end - length, end) for length, end in zip(lengths, ends) if length]
    whole = prompts if broken is None else prompts[1 - broken :: 2]
    if broken is not None:
        for part in (*prompts[broken::2], slice(ends[-1], rows)):
            both[part] = float("nan")
    values = both.view(rows, -1, head_dim)
    q, k, v = values[:, :heads], values[:, heads : heads + kv_heads], values[:, heads + kv_heads :]
    out = device.empty((rows, heads, head_dim), torch.bfloat16)
    out.fill_(7.0)
    starts = device.empty((len(lengths) + 1,), torch.int32)
    starts.copy_(torch.tensor([0, *ends]))
    own_attention.run(device, q, k, v, starts, out)
    device.mark().wait()
    wanted = torch.full_like(out, 7.0, dtype=torch.float32)
    for part in whole:
        wanted[part] = in_float32(q[part], k[part], v[part], causal=True)
    right = all(same(out[part], wanted[part]) for part in whole)
    return right and bool((out[ends[-1] :] == 7.0).all())


def note_attention(device: Device, trials: Trials, head_dim: int) -> bool:
    """Tries the attention of heads of ``head_dim`` and keeps the outcome, which it returns."""
    trials.note(str(head_dim), False)
    try:
        passed = attends(device, head_dim)
    except RuntimeError as error:  # of the compiler or the driver
        print(f"attention, heads of {head_dim}: {error}", flush=True)
        passed = False
    trials.note(str(head_dim), passed)
    print(f"attention, heads of {head_dim}: {'passed' if passed else 'FAILED'}", flush=True)
    return passed


def one(head_dim: int) -> int:
    """Try in a process of its own."""
    from prelude.cuda.cuda_device import CudaDevice

    device = CudaDevice(torch.bfloat16, head_dim=head_dim)
    with device.scope():
        return 0 if note_attention(device, own_attention.trials(device.name), head_dim) else 1


def main(arguments: list[str]) -> int:
    if arguments:
        return one(int(arguments[0]))
    failed = 0
    for head_dim in reversed(own_attention.HEAD_DIMS):
        command = [sys.executable, "-m", "prelude.cuda.own_trial", str(head_dim)]
        process = subprocess.Popen(command)
        try:
            failed += process.wait(LIMIT) != 0
        except subprocess.TimeoutExpired:
            process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_ENDING)
            print(f"attention, heads of {head_dim}: no end after {LIMIT:.0f} s", flush=True)
            failed += 1
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
