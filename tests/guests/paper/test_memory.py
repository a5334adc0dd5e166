"""Table 2, Figures 1, 7, 8 and 9, and Appendix C, compared with numbers computed by hand.

All tests that need the results of Appendix C are in this file: `--dist loadfile` runs a file in one
process, which simulates Appendix C once.
"""

import json
from fractions import Fraction

import pytest
from pytest import MonkeyPatch

from simtrain.guests.paper import memory as paper_memory
from simtrain.guests.paper import targets
from simtrain.guests.paper.entries import PaperLimit, PaperSection, Reproduction
from tests.guests.paper.test_entries import sample
from tests.helpers.command_line import call

pytestmark = pytest.mark.slow

GIB = 2**30
TARGETS = ("table2", "fig1", "fig7", "fig8", "fig9", "appendix-c")
# Table 3: a, h, L, p, b.
MODELS = {
    "22B": (64, 6144, 48, 1, 4),
    "175B": (96, 12288, 96, 8, 1),
    "530B": (128, 20480, 105, 35, 1),
    "1T": (160, 25600, 128, 64, 1),
}
S, T, V = 2048, 8, 51200
PRESENT = "selective+sequence"


@pytest.fixture(scope="module")
def results() -> dict[str, targets.TargetResult]:
    """Reproduce every target in this file."""
    return {target: targets.reproduce(target) for target in TARGETS}


def entries(results: dict[str, targets.TargetResult], target: str, name: str) -> PaperSection:
    """Return a section of a reproduced target."""
    result = results[target]
    assert isinstance(result, Reproduction)
    return result.section(name)


def test_all_runs_every_target_in_order(
    results: dict[str, targets.TargetResult], monkeypatch: MonkeyPatch
) -> None:
    times = targets.table4()
    for name in ("table4", "table5", "dp530b"):
        monkeypatch.setattr(targets, name, lambda progress: times)
    for name, result in results.items():
        monkeypatch.setattr(targets, name.replace("-", "_"), lambda progress, result=result: result)
    page, written = call("reproduce", "all"), call("reproduce", "all", "--format=json")
    assert (page.exit_code, page.stderr, written.exit_code) == (0, "", 0)
    assert page.stdout.splitlines()[-1] == "OK: all 9 targets"
    data = json.loads(written.stdout)
    assert list(data["targets"]) == [
        *("table2", "table4", "table5", "dp530b", "fig1", "fig7", "fig8", "fig9"),
        "appendix-c",
    ]
    assert data["ok"] is True
    monkeypatch.setattr(targets, "fig9", lambda progress: sample(101, PaperLimit.exactly(100)))
    page, written = call("reproduce", "all"), call("reproduce", "all", "--format=json")
    assert (page.exit_code, written.exit_code) == (4, 4)
    assert page.stdout.splitlines()[-1] == "FAILED: fig9 (1 of 9 targets)"
    misses = json.loads(written.stdout)["misses"]
    assert misses == ["fig9: bytes of it, 22B: 101 bytes (allowed: exact)"]


# ----------------------------------------------------------------------------------------- Table 2


def layer_bytes(model: str, strategy: str) -> Fraction:
    """Return a row of Table 2, first column."""
    a, h, _, _, b = MODELS[model]
    scores = Fraction(5 * a * S, h)
    factor = {
        "no parallelism": 34 + scores,
        "baseline": 10 + Fraction(24, T) + scores / T,
        "sequence": Fraction(34, T) + scores / T,
        "selective": 10 + Fraction(24, T),
        PRESENT: Fraction(34, T),
        "full": Fraction(2),
    }[strategy]
    return S * b * h * factor


def test_table_2(results: dict[str, targets.TargetResult]) -> None:
    section = entries(results, "table2", "activations")
    rows = ["no parallelism", "baseline", "sequence", "selective", PRESENT, "full"]
    assert [entry.labels for entry in section.entries] == [
        (model, strategy) for model in MODELS for strategy in rows
    ]
    for entry in section.entries:
        assert entry.simulated == entry.paper == layer_bytes(*entry.labels)
        assert entry.limit == PaperLimit.exactly(entry.simulated)
    flops = entries(results, "table2", "flops")
    a_layer = 72 * S * 12288**2 * (1 + S / (6 * 12288))
    assert flops.value("175B", "no parallelism") == pytest.approx(a_layer)
    assert flops.value("175B", "full") == pytest.approx(a_layer * 4 / 3 / T)
    sent = entries(results, "table2", "communication")
    assert sent.value("175B", "no parallelism") == 0
    assert sent.value("175B", "baseline") == 14 * S * 12288
    assert sent.value("175B", "full") == 21 * S * 12288


def test_ends_of_the_22b_model(results: dict[str, targets.TargetResult]) -> None:
    """Section 4.3, whose text says "less than 0.01 %": its formula has 0.015 % and 0.57 %."""
    sbh = S * 4 * 6144
    section = entries(results, "table2", "ends")
    dropout, everything = (entry.simulated for entry in section.entries)
    assert dropout == sbh / T
    assert everything == sbh / T * (1 + 4 * (1 + V / 6144))
    shares = entries(results, "table2", "ends_share")
    assert [f"{100 * entry.simulated:.3f}" for entry in shares.entries] == ["0.015", "0.568"]


# ---------------------------------------------------------------------------------- Figures 1 and 7


def test_figure_1(results: dict[str, targets.TargetResult]) -> None:
    """18 bytes per weight, of 12h²L; activations of L layers, times 1 + (p-1)/(pm)
    if interleaved.
    """
    states = entries(results, "fig1", "states")
    equations = entries(results, "fig1", "equations")
    held = entries(results, "fig1", "activations")
    for model, (_, h, layers, p, _) in MODELS.items():
        weights = 18 * 12 * h**2 * layers / (T * p)
        assert states.value(model) == pytest.approx(weights, rel=2e-3)
        interleaved = 1 + Fraction(p - 1, p * 3) if model in ("175B", "530B") else 1
        for strategy in ("baseline", PRESENT):
            expected = layer_bytes(model, strategy) * layers * interleaved
            assert equations.value(model, strategy) == expected
            assert expected < held.value(model, strategy) < 1.03 * expected
            read = held.entry(model, strategy).paper
            assert read == pytest.approx(float(expected), rel=0.005)


def test_figure_7(results: dict[str, targets.TargetResult]) -> None:
    shares = entries(results, "fig7", "shares")
    for entry in shares.entries:
        model, technique = entry.labels
        ratio = layer_bytes(model, technique) / layer_bytes(model, "baseline")
        assert entry.simulated == float(ratio)
    core = entries(results, "fig7", "attention_core")
    assert [entry.simulated for entry in core.entries] == [80, 64, 871]
    assert 34 * 12288 / (5 * 96) == 870.4
    saved = entries(results, "fig7", "savings")
    assert saved.value("GPT-3") == pytest.approx(80 / 114)
    assert saved.value("MT-NLG") == pytest.approx(64 / 98)


# ---------------------------------------------------------------------------------- Figures 8 and 9


def test_figure_8(results: dict[str, targets.TargetResult]) -> None:
    times = entries(results, "fig8", "times")
    overheads = entries(results, "fig8", "overheads")
    for model in MODELS:
        parts = {
            strategy: [times.value(model, strategy, part) for part in times.names("part")]
            for strategy in times.names("strategy")
        }
        assert parts["baseline"][2] == 0
        assert parts["full"][:2] == parts["baseline"][:2]
        # The recompute takes a whole forward pass, except for launches that overlap with earlier
        # kernels.
        assert parts["full"][2] == pytest.approx(parts["baseline"][0], rel=0.01)
        assert 0 < parts[PRESENT][2] < 0.2 * parts["full"][2]
        for strategy in ("full", PRESENT):
            overhead = sum(parts[strategy]) / sum(parts["baseline"]) - 1
            assert overheads.value(model, strategy) == pytest.approx(overhead)


def test_figure_9(results: dict[str, targets.TargetResult]) -> None:
    """1F1B without deallocation: p - S microbatches of L/p layers, 13 sbh each, and the dropout
    masks.
    """
    sbh, p = S * 20480, 35
    curves = entries(results, "fig9", "curves")
    for stage in range(p - 1):
        flying = p - stage
        layers = flying * 3 * 13 * sbh + (flying * sbh if stage == 0 else 0)
        whole = (paper_memory.WHOLE, paper_memory.DEALLOCATED, str(stage))
        assert curves.value(*whole) == layers
        kept = (paper_memory.WHOLE, paper_memory.KEPT, str(stage))
        assert curves.value(*kept) == layers + flying * 2 * sbh
    saved = entries(results, "fig9", "savings")
    assert saved.value(paper_memory.WHOLE) == 2 * sbh * p
    assert f"{2 * sbh * p / GIB:.2f}" == "2.73"
    # Interleaved: 139 forward passes outstanding, each with an eighth of an output.
    assert saved.value(paper_memory.SPLIT) == 139 * 2 * sbh / T


# --------------------------------------------------------------------------------------- Appendix C


def test_appendix_c(results: dict[str, targets.TargetResult]) -> None:
    """1F1B: stage S has p - S microbatches outstanding, of which the first stage keeps fewest."""
    windows = entries(results, "appendix-c", "windows")
    num_stages = len(windows.names("stage"))
    assert [windows.value(str(stage)) for stage in range(num_stages)] == [
        num_stages - stage for stage in range(num_stages)
    ]
    kept = entries(results, "appendix-c", "kept")
    for model in kept.names("model"):
        p = MODELS[model][3]
        outstanding, of_these, stages, whole = (
            kept.value(model, name)
            for name in (
                "forward passes outstanding on the first stage",
                "kept of these",
                "stages",
                "stages without recompute",
            )
        )
        assert stages == p and outstanding >= p
        assert 0 < of_these < outstanding and 0 < whole < p
    mfu, gains = (entries(results, "appendix-c", name) for name in ("utilization", "gains"))
    for model in gains.names("model"):
        before, after = (mfu.value(model, each) for each in mfu.names("recompute"))
        assert gains.value(model) == pytest.approx(after - before)
