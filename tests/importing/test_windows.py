"""Megatron-LM's --window-attn-skip-freq: every nth layer without a window, or a list of layers."""

import pytest

from simtrain.errors import InputError
from tests.helpers.imported import import_megatron

BASE = """python pretrain_gpt.py --num-layers 4 --hidden-size 1024 --num-attention-heads 16
 --seq-length 2048 --micro-batch-size 1 --global-batch-size 8 --vocab-size 51200 --bf16
 --window-size 127,0 --window-attn-skip-freq """.replace("\n", " ")


@pytest.mark.parametrize(
    ("value", "window", "every"),
    [
        ("2", 128, 2),
        ("1", None, None),
        ("6", 128, None),
        ("[1,0,1,0]", 128, 2),
        ("'[1, 1, 1, 0]'", 128, 4),
        ("[1,1,1,1]", 128, None),
        ("[0,0,0,0]", None, None),
    ],
)
def test_layers_without_a_window(value: str, window: int | None, every: int | None) -> None:
    model = import_megatron(BASE + value)[0].model
    assert (model.attention_window, model.full_attention_every) == (window, every)


@pytest.mark.parametrize("value", ["[0,1,1,1]", "[1,0]", "[1,2,1,0]", "every"])
def test_other_patterns_are_refused(value: str) -> None:
    with pytest.raises(InputError, match="E872"):
        import_megatron(BASE + value)
