"""Releases of software stacks: order, unknown ones, and the runs for which their entries hold."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from simtrain.base.resources import list_profiles, list_stacks
from simtrain.base.strict_yaml import parse_document
from simtrain.errors import InputError
from simtrain.scenario import Scenario, load_scenario
from simtrain.scenario.software import (
    Circumstances,
    as_of,
    known_releases,
    latest_until,
    load_stack,
    refusal,
    releases_of,
)

WITH_RELEASES = [name for name in list_stacks() if releases_of(name)]
BRIDGE = "megatron_bridge"
STACK = """\
name: ours
speed: {value: slow, source: first}
kept: {value: true, source: base}
releases:
  - release: "1.2"
  - release: "1.10"
    speed: {value: fast, source: second}
  - release: "1.10"
    when: {experts: true, fsdp: false, clusters: [gb200], min_hidden_size: 64, max_hidden_size: 96}
    speed: {value: faster, source: third}
  - release: "2.0"
    speed: {value: fastest, source: fourth}
"""
EXPERTS = Circumstances("gb200", True, in_pipeline=False, recipe="", hidden_size=64)
DENSE = Circumstances("gb200", has_experts=False, in_pipeline=False, recipe="")


def speed_of(last: str, run: Circumstances | None) -> str:
    """Return the entry that differs between releases of `STACK`."""
    document = as_of(parse_document(STACK, "ours.yaml"), last, run)
    assert document.data["kept"]["value"]
    assert "releases" not in document.data
    value: str = document.data["speed"]["value"]
    return value


def test_a_release_has_the_newest_entries_up_to_it() -> None:
    assert known_releases(parse_document(STACK, "ours.yaml")) == ("1.2", "1.10", "2.0")
    assert [speed_of(last, DENSE) for last in ("1.2", "1.10", "2.0")] == ["slow", "fast", "fastest"]


def test_entries_hold_for_the_runs_that_meet_all_conditions() -> None:
    others = EXPERTS._replace(cluster="b200_sxm"), EXPERTS._replace(has_fsdp=True)
    sizes = [EXPERTS._replace(hidden_size=size) for size in (63, 96, 97)]
    runs = EXPERTS, *sizes, DENSE, *others, None
    assert [speed_of("1.10", run) == "faster" for run in runs] == [1, 0, 1, 0, 0, 0, 0, 0]


@pytest.mark.parametrize(
    ("release", "found"),
    [
        ("1.2", "1.2"),
        ("1.9", "1.2"),  # numbers, not decimals: 1.9 is older than 1.10
        ("1.10", "1.10"),
        ("1.10.3", "1.10"),
        ("2.0", "2.0"),
        ("1.1", None),
        ("2.0.1", None),
        ("3", None),
        ("newest", None),
        ("1..2", None),
        ("", None),
    ],
)
def test_a_release_between_two_takes_the_older_ones_entries(
    release: str, found: str | None
) -> None:
    assert latest_until(release, ("1.2", "1.10", "2.0")) == found


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("releases: 3\n", "E203"),
        ("releases: [1]\n", "E203"),
        ("releases:\n  - {when: {experts: true}}\n", "E202"),
        ("releases:\n  - {release: 26.02}\n", "E203"),
        ('releases:\n  - {release: "26.02"}\n  - {release: "25.11"}\n', "E206"),
        ("releases:\n  - {release: newest}\n", "E206"),
        ('releases:\n  - {release: "1.0", when: {gpu: [gb200]}}\n', "E201"),
    ],
)
def test_sections_of_releases_are_read_strictly(text: str, code: str) -> None:
    with pytest.raises(InputError) as caught:
        known_releases(parse_document(text, "ours.yaml"))
    problem = caught.value.problems[0]
    assert problem.code == code
    assert problem.location is not None and problem.location.file == "ours.yaml"


def circumstances() -> Iterator[Circumstances]:
    """Yield runs that conditions tell apart."""
    for cluster in list_profiles():
        for has_experts, in_pipeline in itertools.product((False, True), repeat=2):
            for recipe in ("", "delayed", "mxfp8", "nvfp4"):
                yield Circumstances(cluster, has_experts, in_pipeline, recipe, False, 2048)
                yield Circumstances(cluster, has_experts, in_pipeline, recipe, True, 8192)


@pytest.mark.parametrize("step", [13, pytest.param(1, marks=pytest.mark.ci)])
@pytest.mark.parametrize("name", WITH_RELEASES)
def test_every_release_is_a_stack_for_every_run(name: str, step: int) -> None:
    newest = releases_of(name)[-1]
    runs = [*itertools.islice(circumstances(), 0, None, step)]
    for run in runs:
        assert load_stack(name, run) == load_stack(f"{name}@{newest}", run)
    stacks = {
        (release, run): load_stack(f"{name}@{release}", run)
        for release in releases_of(name)
        for run in runs
    }
    # No release, and no condition, is without effect.
    facts = {key: str(stack.facts) for key, stack in stacks.items()}
    assert len({*facts.values()}) >= min(4, len(releases_of(name)))


def test_names_and_releases_that_do_not_exist_are_explained() -> None:
    assert refusal(BRIDGE) is None
    assert refusal(f"{BRIDGE}@26.03") is None
    message, fix = refusal(f"{BRIDGE}@27.01") or ("", "")
    assert message == 'megatron_bridge has no release "27.01"'
    assert all(release in fix for release in releases_of(BRIDGE))
    assert (refusal("eager@2") or ("", ""))[0] == 'eager has no releases, but "2" is written'
    assert refusal(f"{BRIDGE}@") is not None
    assert "no software stack" in (refusal("megatron_brigde@26.06") or ("", ""))[0]
    with pytest.raises(InputError, match="E101"):
        load_stack(f"{BRIDGE}@24.01")


def qwen(software: str, cluster: str = "gb300", **changes: Any) -> Scenario:
    """Return Qwen3-30B-A3B on 8 GPUs in mxfp8, as Megatron-Bridge's recipe runs it."""
    layout = {"parallelism.pipeline": 1, "parallelism.data": 8, "parallelism.expert": 8}
    precision = {"precision.compute": "fp8", "precision.fp8_recipe": "mxfp8"}
    own = {"software": software, "cluster": cluster} | layout | precision | changes
    return load_scenario("qwen3_30b_a3b").replace(own)


@pytest.mark.parametrize(
    "changes",
    [
        {"overlap.merged_passes": False},
        {"recompute": "full"},
        {"memory.zero_stage": 2},
        {"model.experts.shared_ffn_hidden_size": 768, "overlap.shared_expert": True},
        {"parallelism.expert": 1},
        {"model.experts.capacity_factor": 1.0},
        {"schedule": "gpipe"},
        {"parallelism.pipeline": 2, "parallelism.data": 4, "parallelism.expert": 4},
    ],
)
def test_defaults_of_a_release_never_make_a_scenario_illegal(changes: dict[str, Any]) -> None:
    from simtrain.scenario import check_scenario

    one = qwen(BRIDGE, **{"overlap.gradient_buckets": "layer"}).replace(changes)
    check_scenario(one)
    if "model.experts.capacity_factor" in changes or "parallelism.expert" in changes:
        expected = {"all_to_all"} if one.parallelism.expert != 4 else {"hybridep"}
        assert one.expert_dispatch in expected
    if "model.experts.capacity_factor" not in changes:
        assert not one.merges_passes


@pytest.mark.parametrize(
    ("changes", "recipe"),
    [
        ({"precision.fp8_recipe": "blockwise"}, "blockwise"),
        ({"precision.compute": "fp4"}, "nvfp4"),
        ({"precision": {"compute": "bf16"}, "memory.zero_stage": 3}, "bf16"),
    ],
)
def test_circumstances_of_a_run(changes: dict[str, Any], recipe: str) -> None:
    found, shards = qwen(BRIDGE).replace(changes).circumstances, "memory.zero_stage" in changes
    assert found == Circumstances("gb300", True, False, recipe, False, 2048, shards)


def test_recipes_do_not_fuse_gradients_of_fsdp() -> None:
    """Megatron-FSDP's gradients are buffers that products do not add to, from 25.11 on."""
    one = load_scenario("llama3_8b").replace({"software": BRIDGE, "parallelism.data": 8})
    both = one, one.replace({"memory.zero_stage": 3})
    fused = [each.facts.kernels.fused_gradient_accumulation for each in both]
    assert fused == [True, False]
