"""Errors of fp8, of fp32 and of optimizer states in bf16."""

from typing import Any

import pytest

from simtrain.errors import InputError
from simtrain.studies.simulation import simulate
from tests.workload.test_precision import fp8, modern


@pytest.mark.parametrize(
    ("precision", "sections", "code", "fix"),
    [
        ({"fp8_recipe": "tensorwise"}, {}, "E393", "precision.compute: fp8"),
        ({"tf32": True}, {}, "E382", "precision.tf32: false"),
        ({"fp8_parameters": True}, {}, "E383", "precision.fp8_parameters: false"),
        (fp8(fp8_parameters=True), {}, "E384", "precision.fp8_parameters: false"),
        (
            fp8("blockwise"),
            {"software": "torchtitan_compiled"},
            "E395",
            "software.stack: megatron_core",
        ),
        (fp8(), {"software": "torchtitan"}, "E394", "software.stack: megatron_core"),
        ({"compute": "fp32"}, {}, "E387", "attention_backend: unfused"),
        ({"exp_avg": "bf16"}, {}, "E388", "precision.exp_avg: fp32"),
        (
            {"compute": "fp16", "main_parameters": "remainder"},
            {"memory": {"zero_stage": 1}},
            "E389",
            "precision.compute: bf16",
        ),
    ],
)
def test_illegal_precision_is_refused_with_a_fix(
    precision: dict[str, Any], sections: dict[str, Any], code: str, fix: str
) -> None:
    grid = {"parallelism": {"data": 2}, "batch": {"micro": 1, "global": 2}}
    with pytest.raises(InputError) as caught:
        modern(precision, **grid, **sections)
    (problem,) = (one for one in caught.value.problems if one.code == code)
    assert problem.fix
    assert fix in problem.fix


def test_sizes_of_fp8_products_are_refused_with_the_nearest_legal_ones() -> None:
    scenario = modern({}, tensor=1).replace({"precision": fp8("blockwise")})
    with pytest.raises(InputError) as caught:
        simulate(scenario.replace({"model.ffn_hidden_size": 1072}))
    (problem,) = caught.value.problems
    assert "model.ffn_hidden_size is 1072" in problem.message
    assert "write model.ffn_hidden_size: 1024 or 1152" in (problem.fix or "")
    assert "precision.fp8_recipe: delayed or tensorwise" in (problem.fix or "")
    assert simulate(scenario.replace({"model.ffn_hidden_size": 1152})).iteration_time_s > 0


def test_an_a100_has_no_fp8() -> None:
    with pytest.raises(InputError) as caught:
        simulate(modern(fp8(), cluster="a100_sxm4_80gb"))
    (problem,) = caught.value.problems
    assert problem.code == "E391"
    assert "A100 has no fp8 tensor cores" in (problem.reason or "")
