"""Tables and logs of measured runs become scenarios, and what cannot says why."""

import dataclasses
import pathlib
import random
import re

import pytest

from docs.update.documents import text_of
from simtrain.errors import InputError
from simtrain.guests.importing.runs import ALIASES, KINDS, read_runs, validate
from simtrain.studies.validation import MeasuredRun, RunSettings, validate_runs
from tests.guests.importing.test_megatron import PRINTED

H100 = RunSettings("h100_sxm", "megatron_core")
USUAL = RunSettings("h100_sxm", None, (), "megatron_core")
OURS = {
    "model.num_layers": "32",
    "model.hidden_size": "4096",
    "model.num_attention_heads": "32",
    "model.seq_length": "4096",
    "batch.global": "64",
    "parallelism.data": "1",
    "iteration_time_s": "2.5",
}


def runs_of(
    folder: pathlib.Path, *rows: dict[str, str], settings: RunSettings = H100
) -> list[MeasuredRun]:
    """Write rows with the columns of the first one, and read them."""
    lines = [",".join(rows[0])] + [",".join(row.values()) for row in rows]
    file = folder / "runs.csv"
    file.write_text("\n".join(lines) + "\n", "utf-8")
    return [*read_runs([file], settings)]


def refusal(folder: pathlib.Path, **cells: str) -> str:
    """Return why a run with these cells is not simulated."""
    (run,) = runs_of(folder, OURS | {name.replace("__", "."): cell for name, cell in cells.items()})
    assert run.scenario is None
    return run.refusal


def test_common_names_mean_the_same_fields(tmp_path: pathlib.Path) -> None:
    layout = {"parallelism.tensor": "4", "parallelism.pipeline": "2", "parallelism.data": "2"}
    ours = OURS | layout | {"batch.micro": "2", "memory.zero_stage": "1"}
    published = {
        "layers": "32", "hidden": "4096", "heads": "32", "seq": "4096", "global_batch": "64",
        "tp": "4", "pp": "2", "gpus": "16", "micro_batch": "2", "iteration_s": "2.5",
        "zero_or_fsdp_stage": "1 (distributed optimizer)",
    }  # fmt: skip
    megatron = {
        "num_layers": "32", "hidden_size": "4096", "num_attention_heads": "32",
        "seq_length": "4096", "global_batch_size": "64", "tensor_model_parallel_size": "4",
        "pipeline_model_parallel_size": "2", "world_size": "16", "micro_batch_size": "2",
        "use_distributed_optimizer": "True", "elapsed time per iteration (ms)": "2500",
    }  # fmt: skip
    vtrain = {
        "# layers": "32", "hidden size": "4096", "attention heads": "32", "sequence length": "4096",
        "global batch": "64", "tensor parallelism": "4", "pipeline parallelism": "2",
        "# GPUs": "16", "micro batch": "2", "iteration time (ms)": "2500", "zero_stage": "1",
    }  # fmt: skip
    read = [runs_of(tmp_path, row)[0] for row in (ours, published, megatron, vtrain)]
    assert [run.refusal for run in read] == [""] * 4
    first, *others = [run.scenario for run in read]
    assert first is not None and first.num_gpus == 16
    assert all(scenario == first for scenario in others)
    assert {run.iteration_time_s for run in read} == {2.5}


def test_a_rate_of_tokens_is_a_time(tmp_path: pathlib.Path) -> None:
    row = {name: cell for name, cell in OURS.items() if name != "iteration_time_s"}
    replicas = {"parallelism.data": "4", "tokens_per_s_per_gpu": "8192"}
    (run,) = runs_of(tmp_path, row | replicas)
    assert run.iteration_time_s == 64 * 4096 / (8192 * 4)


def test_the_model_has_what_its_name_says(tmp_path: pathlib.Path) -> None:
    """Llama's activation and norms come from its name; a printed cell wins."""
    names = "Llama-3.1 8B", "Llama2-34B", "Yet another 7B"
    rows = [OURS | {"model": name, "vocab": "64000"} for name in names]
    models = [run.scenario.model for run in runs_of(tmp_path, *rows) if run.scenario]
    assert [model.activation for model in models] == ["swiglu", "swiglu", "gelu"]
    assert [model.normalization for model in models] == ["rms_norm"] * 2 + ["layer_norm"]
    assert [model.num_query_groups for model in models] == [8, 32, 32]
    assert {model.vocab_size for model in models} == {64000}


def test_a_row_runs_on_the_stack_of_its_framework(tmp_path: pathlib.Path) -> None:
    row = OURS | {"framework": "llm-foundry", "zero_stage": "3 (FSDP)", "dp": "8"}
    (run,) = runs_of(tmp_path, row, settings=RunSettings("h100_sxm", None, (), "megatron_core"))
    assert run.scenario is not None
    assert run.scenario.software.stack == "llm_foundry"
    assert "software of llm-foundry: llm_foundry, which --software changes" in run.assumed
    (run,) = runs_of(tmp_path, row, settings=RunSettings("h100_sxm", "torchtitan"))
    assert run.scenario is not None and run.scenario.software.stack == "torchtitan"
    (run,) = runs_of(tmp_path, row | {"framework": "ours"}, settings=RunSettings("h100_sxm"))
    assert run.scenario is not None and run.scenario.software.stack == "megatron_2022"


def test_fp8_of_torchao_has_its_own_recipe(tmp_path: pathlib.Path) -> None:
    row = OURS | {"framework": "torchtitan", "dtype": "fp8"}
    (run,) = runs_of(tmp_path, row, settings=RunSettings("h100_sxm"))
    assert run.scenario is not None and run.scenario.precision.fp8_recipe == "tensorwise"


def test_settings_of_the_command_line_win(tmp_path: pathlib.Path) -> None:
    settings = RunSettings("h100_sxm", "torchtitan", ("model.vocab_size=32000",))
    (run,) = runs_of(tmp_path, OURS | {"vocab": "64000"}, settings=settings)
    assert run.scenario is not None
    assert run.scenario.model.vocab_size == 32000
    assert (run.scenario.cluster, run.scenario.software.stack) == ("h100_sxm", "torchtitan")


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        ({"iteration_time_s": "-3"}, 'iteration_time_s is "-3", but must be a number above 0'),
        ({"iteration_time_s": "nan"}, 'iteration_time_s is "nan", but must be a number above 0'),
        ({"iteration_time_s": "fast"}, 'iteration_time_s is "fast", but must be a number above 0'),
        ({"iteration_time_s": ""}, "neither a time nor a peak was measured"),
        ({"tp": "2.5"}, 'tp is "2.5", but must be a whole number from 1'),
        ({"sp": "perhaps"}, 'sp is "perhaps", but must be true or false'),
        ({"recompute": "selectiv"}, "E2"),
        ({"recompute": "none/selective"}, "but must be one word"),
        ({"zero_stage": "HSDP"}, 'zero_stage is "HSDP", but must be a stage from 0 to 3'),
        ({"model__num_layer": "6"}, "E2"),
        ({"gpus": "6", "tp": "4"}, "6 GPUs, but tensor x context x pipeline x data is 4"),
        ({"hardware": "a100-80g"}, "measured on a100-80g, whose profile is a100_sxm4_80gb"),
        ({"hardware": "h100-64g"}, "measured on h100-64g, of which there is no profile"),
        ({"model__hidden_size": ""}, "model.hidden_size is not printed"),
        ({"schedule": "ZB-3p"}, 'schedule is "zb_3p", but must be one of 1f1b, gpipe'),
        ({"overlap__userbuffers": "soon"}, "E203"),
    ],
)  # fmt: skip
def test_a_row_that_cannot_be_simulated_says_why(
    tmp_path: pathlib.Path, cells: dict[str, str], words: str
) -> None:
    assert words in refusal(tmp_path, **cells)


def test_repeated_and_too_long_lines_are_named(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "runs.csv"
    line = ",".join(OURS.values())
    file.write_text(f"# my runs\n{','.join(OURS)}\n{line}\n\n{line}\n{line},8\n", "utf-8")
    first, second, third = read_runs([file], H100)
    assert (first.refusal, first.line) == ("", 3)
    assert (second.refusal, second.line) == ("the same as line 3", 5)
    assert third.refusal == "8 cells for 7 columns"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "the table has no runs"),
        (",".join(OURS), "the table has no runs"),
        ("layers,layers\n1,2\n", "columns are repeated: layers"),
    ],
)
def test_a_bad_table_is_refused(tmp_path: pathlib.Path, text: str, words: str) -> None:
    file = tmp_path / "runs.csv"
    file.write_text(text, "utf-8")
    with pytest.raises(InputError) as caught:
        read_runs([file], H100)
    assert "E891" in str(caught.value) and words in str(caught.value)


def test_runs_with_large_effects_that_are_not_modelled_are_refused(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "train.log"
    text = PRINTED.replace("0:   seq_length", "0:   optimizer ....... muon\n0:   seq_length")
    file.write_text(text + LINES, "utf-8")
    (run,) = read_runs([file], RunSettings("a100_sxm4_80gb"))
    assert run.scenario is None
    assert run.refusal.startswith("E893") and "is not modelled" in run.refusal


LINES = "".join(
    f" iteration {number}/ 100 | elapsed time per iteration (ms): {time_ms} | loss: 1.0 |\n"
    for number, time_ms in enumerate([9000, 2000, 1500, 1400, 1300, 1210.5, 1200, 1190.5], start=1)
)
MEMORY = "[Rank 0] (after 1 iterations) memory (MB) | allocated: 10.0 | max allocated: 2048.5 |\n"


def test_a_log_is_one_run(tmp_path: pathlib.Path) -> None:
    """The median of the iterations after the first five, and Megatron's MB of 2^20 bytes."""
    file = tmp_path / "train.log"
    file.write_text(PRINTED + LINES + MEMORY, "utf-8")
    (run,) = read_runs([file], RunSettings("a100_sxm4_80gb"))
    assert run.refusal == ""
    assert (run.name, run.iteration_time_s, run.peak_bytes) == ("train", 1.2, 2048.5 * 2**20)
    assert run.scenario is not None and run.scenario.num_gpus == 16


def test_two_logs_say_what_differs_between_them(tmp_path: pathlib.Path) -> None:
    """B has tp 8 and dp 1 on the same 16 GPUs, twice the batch, and takes twice the time."""
    other = PRINTED.replace("tensor-model-parallel size: 4", "tensor-model-parallel size: 8")
    other = other.replace("data-parallel size: 2", "data-parallel size: 1")
    sizes = {"tensor_model_parallel_size": 8, "data_parallel_size": 1, "global_batch_size": 128}
    for name, size in sizes.items():
        other = re.sub(rf"( {name} \.+) \d+", rf"\1 {size}", other)
    (tmp_path / "a.log").write_text(PRINTED + LINE.format("1200"), "utf-8")
    (tmp_path / "b.log").write_text(other + LINE.format("2400"), "utf-8")
    validation = validate([tmp_path / "a.log", tmp_path / "b.log"], "a100_sxm4_80gb")
    difference, times_s = validation.difference, [row.simulated_s or 0.0 for row in validation.rows]
    assert difference and difference.simulated == times_s[1] / times_s[0]
    assert (difference.measured, difference.unexplained) == (2.0, 2.0 / difference.simulated)
    assert "B takes 2 times as long as A" in validation.headline
    rows = [[*row.values()] for row in validation.view().tables["differences"].records()]
    of_batch, of_layout = rows[0].pop(), rows[1].pop()
    values = [["batch.global", 64, 128], ["parallelism.tensor", 4, 8], ["parallelism.data", 2, 1]]
    assert rows == [*values[:2], [*values[2], None]]
    # The layout changes last, after the batch: both changes together are the whole.
    assert (1 + of_batch) * (1 + of_layout) == pytest.approx(difference.simulated, rel=1e-12)
    one = validate(tmp_path / "a.log", "a100_sxm4_80gb")
    assert one.difference is None and "difference" not in one.to_dict()


def test_a_log_that_is_cut_is_refused(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "train.log"
    file.write_text(PRINTED, "utf-8")
    with pytest.raises(InputError, match=r"E892 the log has no line with 'elapsed time"):
        read_runs([file], RunSettings("a100_sxm4_80gb"))


def test_experts_of_a_known_model_keep_their_width(tmp_path: pathlib.Path) -> None:
    """NVIDIA's summary prints 6,144 for Qwen3 30B: no layer of it is dense, experts have 768."""
    moe = OURS | {"model": "Qwen3_30B_a3B", "ffn_hidden": "6144"}
    (run,) = runs_of(tmp_path, moe)
    assert run.scenario and run.scenario.model.experts
    assert run.scenario.model.experts.ffn_hidden_size == 768
    assert "experts are 768 wide as in qwen3_30b_a3b, not 6144 as printed" in run.assumed
    (run,) = runs_of(tmp_path, moe | {"ffn_hidden": "768"})
    assert not any("wide" in assumed for assumed in run.assumed)


def test_the_number_of_gpus_must_be_known(tmp_path: pathlib.Path) -> None:
    row = {name: cell for name, cell in OURS.items() if name != "parallelism.data"}
    (run,) = runs_of(tmp_path, row)
    assert "the number of GPUs is not printed" in run.refusal
    settings = dataclasses.replace(H100, overrides=("parallelism.data=8",))
    (run,) = runs_of(tmp_path, row, settings=settings)
    assert run.scenario is not None and run.scenario.num_gpus == 8


@pytest.mark.parametrize(
    "name", ["GPT-OSS 120B", "Foo 8x7B", "Bar-30B-A3B", "tiny MoE", "Baz_30B_a3B"]
)
def test_a_model_with_experts_needs_their_columns(tmp_path: pathlib.Path, name: str) -> None:
    assert "model.experts.num" in refusal(tmp_path, model=name)
    experts = {"model.experts.num": "8", "model.experts.top_k": "2"}
    (run,) = runs_of(tmp_path, OURS | {"model": name} | experts)
    assert "has experts" not in run.refusal


def test_columns_that_are_not_read_are_named(tmp_path: pathlib.Path) -> None:
    (run,) = runs_of(tmp_path, OURS | {"mfu_pct": "7", "notes": "schedule=GPipe"})
    assert run.assumed[-1] == "these columns, which are not read, do not matter: mfu_pct, notes"


@pytest.mark.parametrize(
    ("layers", "layout"),
    [("2", "E|t|t|L"), ("6", "Et|tt|tt|tL"), ("7", "Ett|tt|tt|tL"), ("5", None), ("8", None)],
)
def test_layers_that_do_not_divide_have_a_layout(
    layers: str, layout: str | None, tmp_path: pathlib.Path
) -> None:
    """2 ranks of 2 chunks: embedding and loss count, or the last is short, not empty (5: E305)."""
    (run,) = runs_of(tmp_path, OURS | {"model.num_layers": layers, "pp": "2", "vpp": "2"})
    assert run.scenario is not None, run.refusal
    assert run.scenario.parallelism.layout == layout
    assert any("do not divide" in what for what in run.assumed) is bool(layout)


def test_a_field_keeps_the_rest_of_a_shipped_models_section(tmp_path: pathlib.Path) -> None:
    row = OURS | {"model": "Mixtral 8x7B", "hardware.inter_node.num_adapters": "4"}
    (run,) = runs_of(tmp_path, row | {"model.experts.capacity_factor": "1.5"})
    assert run.scenario is not None and run.scenario.model.experts is not None, run.refusal
    experts = run.scenario.model.experts
    assert (experts.capacity_factor, experts.num) == (1.5, 8)
    assert run.scenario.hardware == {"inter_node": {"num_adapters": 4}}


def test_an_illegal_combination_says_why_and_not_what_to_change(tmp_path: pathlib.Path) -> None:
    adapters = {"model.lora.rank": "16", "model.lora.modules": "[linear_fc1_gate]"}
    illegal = OURS | adapters | {"model.activation": "gelu"}
    (run,) = runs_of(tmp_path, illegal, settings=RunSettings("h100_sxm"))
    (row,) = validate_runs([run], "h100_sxm").rows
    assert "the halves of a gated MLP's first product" in row.refusal


def test_the_how_to_names_every_column() -> None:
    page = text_of("docs/how_to/validate.md")
    columns = {names[0] for kind in KINDS for names in ALIASES[kind].values()}
    assert sorted(name for name in columns if f"`{name}`" not in page) == []


# Damaged tables and logs: each is read or refused, none crashes.

HEAD = (
    "name,model,layers,hidden,heads,seq,gpus,tp,global_batch,sharding,notes,iteration_s,peak_mem_gb"
)
ROW = 'a,"Llama, 3",24,2048,16,2048,8,2,64,1 (no overlap),"GA=4, overlap_grad_reduce on",1.5,40'
LINE = " iteration 1/ 100 | elapsed time per iteration (ms): {} | loss: 1.0 |\n"
PEAK = "[Rank 0] (after 1 iterations) memory (MB) | allocated: 10.0 | max allocated: {} |\n"


def runs_in(folder: pathlib.Path, text: str, name: str = "runs.csv") -> list[MeasuredRun]:
    file = folder / name
    file.write_text(text, "utf-8", newline="")
    return [*read_runs([file], USUAL)]


@pytest.mark.parametrize("number", ["...", "1.2.3", "0.0", "1e-400", "9" * 400, "nan", "", "1e9"])
def test_a_garbled_time_of_a_log_counts_as_missing(number: str, tmp_path: pathlib.Path) -> None:
    with pytest.raises(InputError, match="E892"):
        runs_in(tmp_path, PRINTED + LINE.format(number), "a.log")
    (run,) = runs_in(tmp_path, PRINTED + LINE.format(number) + LINE.format("1200.5"), "a.log")
    assert run.iteration_time_s == pytest.approx(1.2005)


@pytest.mark.parametrize("number", ["...", "1.2.3", "0.0", "1e-400", "9" * 400, "nan"])
def test_a_garbled_peak_of_a_log_counts_as_missing(number: str, tmp_path: pathlib.Path) -> None:
    (run,) = runs_in(tmp_path, PRINTED + LINE.format("1200") + PEAK.format(number), "a.log")
    assert run.peak_bytes is None
    text = PRINTED + LINE.format("1200") + PEAK.format(number) + PEAK.format("2048.5")
    (run,) = runs_in(tmp_path, text, "a.log")
    assert run.peak_bytes == 2048.5 * 2**20


@pytest.mark.parametrize(
    "rows",
    [f'a,"{"x" * 200_000}",2', 'a,"open,2\nb,c,3', 'a,"b"c,2', 'a,"b\nc'],
    ids=["long cell", "open quote", "text after a quote", "open quote at the end"],
)
def test_a_broken_table_is_an_error_with_its_line(rows: str, tmp_path: pathlib.Path) -> None:
    with pytest.raises(InputError, match=r"runs\.csv:\d: E891 the table is broken"):
        runs_in(tmp_path, f"{HEAD}\n{rows}\n")


@pytest.mark.parametrize("time", ["1e12", "1e308", "1e-308", "1e-9", "1e400", "-1", "0", "nan"])
def test_a_time_that_no_iteration_has_refuses_its_row(time: str, tmp_path: pathlib.Path) -> None:
    (run,) = runs_in(tmp_path, f"{HEAD}\n{ROW}\n".replace(",1.5,", f",{time},"))
    assert run.scenario is None and "iteration_s" in run.refusal


def damaged(rng: random.Random, text: str) -> str:
    """Change some characters, cells or lines of a text."""
    cells = ["", "-1", "1e400", "nan", "9" * 5000, "\ud7ff", "0x1f", '""', "{a: [", "null"]
    for _ in range(rng.randrange(1, 4)):
        place = rng.randrange(len(text) + 1)
        match rng.randrange(4):
            case 0:
                text = text[:place] + rng.choice('",\n\r\0\t#;[]{}=:.-\x1b\u202e') + text[place:]
            case 1:
                text = text[:place] + text[place + rng.randrange(20) :]
            case 2:
                parts = text.split(",")
                parts[rng.randrange(len(parts))] = rng.choice(cells)
                text = ",".join(parts)
            case 3:
                lines = text.split("\n")
                lines.insert(rng.randrange(len(lines) + 1), rng.choice(lines))
                text = "\n".join(lines)
    return text


@pytest.mark.parametrize("count", [150, pytest.param(4_000, marks=pytest.mark.ci)])
def test_damaged_sources_are_read_or_refused(count: int, tmp_path: pathlib.Path) -> None:
    rng = random.Random(count)
    more = "model.layer_pattern,parallelism.layout,recompute,schedule,dtype,software"
    sources = {
        "a.csv": f"{HEAD}\n{ROW}\n",
        "b.csv": f"{HEAD},{more}\n{ROW},M*M*,Et|tL,full,1f1b,fp8,nemo\n",
        "d.log": PRINTED + LINE.format(1200.5) + PEAK.format(2048.5),
    }
    for number in range(count):
        name = rng.choice([*sources])
        try:
            for run in runs_in(tmp_path, damaged(rng, sources[name]), name):
                assert (run.scenario is None) == bool(run.refusal), number
        except InputError as error:
            assert str(error)
