"""Who holds the memory of a recorded program: by hand, and in sums that must hold for any."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from simtrain.recording.holders import UNNAMED, holders_at
from simtrain.recording.program import Program, expanded
from simtrain.workload.recorded_step import GRADIENTS, SAVED, TEMPORARY
from tests.helpers.recorded_programs import LAYERS, SIZE, WEIGHT, named_layers, programs


def held(program: Program, phase: str, place: int) -> Counter[tuple[str, str]]:
    return Counter(
        {
            (each.kind, each.made_by): each.num_bytes
            for each in holders_at(program, phase, place)
            if each.made_by
        }
    )


def test_saved_inputs_gradients_and_temporary_tensors_are_told_apart() -> None:
    """The second layer's input gradient: two inputs are left, two gradients are there."""
    assert held(named_layers(), "backward", 4) == {
        (SAVED, "layers.*: aten.mm"): (LAYERS - 1) * SIZE,
        (GRADIENTS, "layers.*: aten.t_mm"): 2 * WEIGHT,
        (TEMPORARY, "head: aten.ones"): (LAYERS - 1) * SIZE,
        (TEMPORARY, "layers.*: aten.mm"): 2 * SIZE,
    }


def test_what_is_saved_says_until_when() -> None:
    holders = holders_at(named_layers(), "forward", LAYERS - 1)
    until = {each.made_by: each.freed_after for each in holders if each.kind == SAVED}
    assert until == {"layers.*: aten.mm": "backward layers.*: aten.mm"}
    (temporary,) = (each for each in holders if each.kind == TEMPORARY)
    assert (temporary.num_bytes, temporary.freed_after) == (SIZE, "")


@given(program=programs, data=st.data())
def test_holders_add_up_to_the_bytes_of_the_recording(
    program: Program, data: st.DataObject
) -> None:
    """Also where a recording frees more of an op than that one has made."""
    phase = data.draw(st.sampled_from(["forward", "backward", "optimizer"]))
    place = data.draw(st.integers(0, len([*expanded(program.passes[phase])]) - 1))
    states = program.states
    expected = states.parameters_bytes + states.optimizer_bytes + states.other_bytes
    for name, runs in program.passes.items():
        for number, op in enumerate(expanded(runs)):
            if (name, number) == (phase, place):
                holders = holders_at(program, phase, place)
                assert sum(each.num_bytes for each in holders) == expected + op.makes_bytes
                assert all(each.num_bytes > 0 or each.kind == UNNAMED for each in holders)
                return
            expected += op.makes_bytes - op.frees_bytes
