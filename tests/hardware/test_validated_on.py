"""Errors of measured iterations that profiles state, compared with docs/validation_details.md."""

from simtrain.base.resources import list_profiles
from simtrain.hardware.evidence import validated_on
from tests.helpers.command_line import call


def test_calibrated_profiles_say_what_they_were_compared_with() -> None:
    found = {name: validated_on(name) for name in list_profiles()}
    for one in found.values():
        assert one and (one.measured_runs or one.summary.startswith("Not yet compared with"))
        assert "none of Megatron" not in one.summary
    assert "Not yet compared with measured layers" in call("show", "trn1").stdout
    assert "mean |error| 1.0%, worst -2.1%" in " ".join(
        call("show", "a100_sxm4_80gb").stdout.split()
    )
