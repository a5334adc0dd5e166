"""Megatron-LM's arguments of activations on the host are mapped, left out, or refused."""

import pytest

from simtrain.errors import InputError
from simtrain.scenario import Offload
from tests.helpers.imported import import_megatron
from tests.helpers.mapped_arguments import EXPERTS

BASE = """python pretrain_gpt.py --num-layers 24 --hidden-size 1024 --num-attention-heads 16
 --seq-length 2048 --micro-batch-size 1 --global-batch-size 8 --vocab-size 51200 """.replace(
    "\n", " "
)
FINE = "--fine-grained-activation-offloading --offload-modules"


@pytest.mark.parametrize(
    ("arguments", "section"),
    [
        ("", "none"),
        ("--offload-modules core_attn", "none"),
        ("--cpu-offloading-num-layers 12", {"layers": 12}),
        (f"{FINE} attn_proj core_attn", {"modules": ("core_attn", "attn_proj")}),
        (f"{FINE} moe_act mlp_norm", {"modules": ("mlp_norm",)}),
        (f"{EXPERTS} {FINE} moe_act mlp_norm", {"modules": ("mlp_norm", "moe_act")}),
        (f"{FINE} expert_fc1", "none"),
    ],
)
def test_arguments_are_mapped(arguments: str, section: object) -> None:
    scenario, _ = import_megatron(BASE + arguments)
    assert scenario.offload == Offload.model_validate(section)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (f"{FINE} fused_group_mlp", "has fused_group_mlp, which is not modelled"),
        ("--fine-grained-activation-offloading", "needs offload_modules"),
        (f"{FINE} core_attn --cpu-offloading-num-layers 2", "cannot be combined"),
    ],
)
def test_arguments_that_megatron_or_simtrain_cannot_run_are_refused(
    arguments: str, says: str
) -> None:
    with pytest.raises(InputError, match=says):
        import_megatron(BASE + arguments)
