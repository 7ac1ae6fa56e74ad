"""Layers that read alike share one attention plan of a step."""

from __future__ import annotations

from dataclasses import replace

from prelude.cpu.layer_kinds import LayerKinds
from prelude.models.spec import Attention, Projection

NOTHING = Projection((), (), 0)
PLAIN = Attention(heads=4, kv_heads=2, head_dim=32, qkv=NOTHING, out=NOTHING, rope=None)


def test_layers_that_differ_in_their_weights_alone_are_one_kind() -> None:
    other = replace(PLAIN, qkv=Projection((), (), 256), out=Projection((), (), 64))
    kinds, of_layer = LayerKinds([PLAIN, other, PLAIN]).within(10)
    assert of_layer == [0, 0, 0] and len(kinds) == 1


def test_a_window_that_leaves_nothing_out_is_none() -> None:
    layers = LayerKinds([PLAIN, replace(PLAIN, window=8), replace(PLAIN, window=64)])
    seen = {
        8: [None, None, None],
        9: [None, 8, None],
        64: [None, 8, None],
        65: [None, 8, 64],
    }
    for highest, windows in seen.items():
        kinds, of_layer = layers.within(highest)
        assert [kinds[kind].window for kind in of_layer] == windows, highest
        assert len(kinds) == len(set(windows)), highest


def test_a_scale_of_its_own_is_another_kind() -> None:
    kinds, of_layer = LayerKinds([PLAIN, replace(PLAIN, scale=0.5)]).within(10)
    assert of_layer == [0, 1] and kinds[1].scale == 0.5


def test_the_grouping_is_kept() -> None:
    layers = LayerKinds([PLAIN, replace(PLAIN, window=8)])
    assert layers.within(9) is layers.within(1000) and layers.within(9) is not layers.within(7)
