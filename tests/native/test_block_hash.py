"""The hashes of token blocks: chained, salted, and the keyed one as published."""

from __future__ import annotations

import numpy as np
import pytest
from prelude._native import core

MASK = 2**64 - 1


def siphash(key: bytes, data: bytes) -> int:
    """SipHash-2-4 as its authors wrote it down."""
    k0, k1 = (int.from_bytes(key[i : i + 8], "little") for i in (0, 8))
    v = [k0 ^ 0x736F6D6570736575, k1 ^ 0x646F72616E646F6D, k0 ^ 0x6C7967656E657261, k1 ^ 0x7465646279746573]

    def rotl(x: int, b: int) -> int:
        return (x << b | x >> (64 - b)) & MASK

    def rounds(n: int) -> None:
        for _ in range(n):
            v[0] = (v[0] + v[1]) & MASK
            v[2] = (v[2] + v[3]) & MASK
            v[1] = rotl(v[1], 13) ^ v[0]
            v[3] = rotl(v[3], 16) ^ v[2]
            v[0] = (rotl(v[0], 32) + v[3]) & MASK
            v[2] = (v[2] + v[1]) & MASK
            v[3] = rotl(v[3], 21) ^ v[0]
            v[1] = rotl(v[1], 17) ^ v[2]
            v[2] = rotl(v[2], 32)

    padded = data + bytes(-(len(data) + 1) % 8) + bytes([len(data) & 255])
    for i in range(0, len(padded), 8):
        word = int.from_bytes(padded[i : i + 8], "little")
        v[3] ^= word
        rounds(2)
        v[0] ^= word
    v[2] ^= 0xFF
    rounds(4)
    return v[0] ^ v[1] ^ v[2] ^ v[3]


def test_the_reference_is_the_published_function() -> None:
    assert siphash(bytes(range(16)), bytes(range(15))) == 0xA129CA6149BE45E5


@pytest.mark.parametrize("size", [1, 2, 3, 16, 17])
def test_the_keyed_hash_is_siphash(size: int) -> None:
    key = bytes(range(16))
    tokens = np.random.default_rng(size).integers(-5, 2**31 - 1, 4 * size + 1).astype(np.int32)
    chain = 77
    for i, got in enumerate(core.block_hashes(tokens, size, salt=77, key=key).tolist()):
        chain = siphash(key, chain.to_bytes(8, "little") + tokens[i * size : (i + 1) * size].tobytes())
        assert got == chain
    with pytest.raises(ValueError, match="16 bytes"):
        core.block_hashes(tokens, key=b"short")


@pytest.mark.feature("E11")
@pytest.mark.parametrize("key", [None, bytes(16)])
@pytest.mark.parametrize("size", [1, 7, 16])
def test_a_hash_names_the_whole_prefix(size: int, key: bytes | None) -> None:
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 150_000, 8 * size).astype(np.int32)
    plain = core.block_hashes(tokens, size, key=key)
    assert len(plain) == 8 and len(set(plain.tolist())) == 8
    assert len(core.block_hashes(tokens[:-1], size, key=key)) == 7
    for at in range(len(tokens)):
        changed = tokens.copy()
        changed[at] ^= 1
        other = core.block_hashes(changed, size, key=key)
        same = at // size
        assert (other[:same] == plain[:same]).all() and (other[same:] != plain[same:]).all()
    assert (core.block_hashes(tokens, size, salt=1, key=key) != plain).all()


def test_every_bit_of_the_plain_hash_moves() -> None:
    """One token up by one flips each of the 64 bits about half of the time."""
    rng = np.random.default_rng(1)
    flips = np.zeros(64)
    for _ in range(400):
        tokens = rng.integers(0, 150_000, 16).astype(np.int32)
        other = tokens.copy()
        other[rng.integers(16)] += 1
        a, b = (int(core.block_hashes(t)[0]) for t in (tokens, other))
        flips += [(a ^ b) >> i & 1 for i in range(64)]
    assert (flips / 400 > 0.35).all() and (flips / 400 < 0.65).all()


STRUCTURED = {
    "counting": lambda n: np.arange(16 * n).reshape(n, 16),
    "one token differs": lambda n: np.where(np.arange(16) == 7, np.arange(n)[:, None], 5),
    "two tokens differ": lambda n: np.select(
        [np.arange(16) == 3, np.arange(16) == 12], [np.arange(n)[:, None] % 256, np.arange(n)[:, None] // 256], 0
    ),
}


@pytest.mark.parametrize("name", STRUCTURED)
def test_blocks_that_hardly_differ_collide_no_more_than_by_chance(name: str) -> None:
    """The trie keeps 32 of the bits and finds a line by the low ones of these."""
    count = 1 << 16
    blocks = STRUCTURED[name](count).astype(np.int32)
    hashes = np.array([core.block_hashes(block, 16)[0] for block in blocks], np.uint64)
    keys = (hashes >> np.uint64(32)).astype(np.uint32)
    assert len(np.unique(hashes)) == count
    assert count - len(np.unique(keys)) <= 8  # half a collision is expected
    per_line = np.bincount(keys & (count - 1), minlength=count)
    assert per_line.var() == pytest.approx(1, abs=0.05)  # as many lines take as many blocks as dice would have it
