"""Unknown settings are named at once or left out; other models are not imported as a GPT."""

import json
from pathlib import Path

import pytest

from simtrain.errors import InputError
from tests.helpers.command_line import MACHINE, call, refused
from tests.helpers.imported import (
    BASE,
    import_hugging_face,
    import_megatron,
    import_torchtitan,
    written,
)

CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": 4,
    "hidden_size": 1024,
    "num_attention_heads": 8,
    "max_position_embeddings": 2048,
    "vocab_size": 32000,
    "new_key": 3,
    "newer_key": 4,
}
JOB = """\
[model]
name = "llama3"
flavor = "8B"
[parallelism]
data_parallel_shard_degree = 8
[training]
seq_len = 8192
new_key = 3
newer_key = 4
"""
SOURCES = {
    "megatron": ("run.sh", f"torchrun pretrain_gpt.py {BASE} --new-key 3 --newer-key 4\n"),
    "hf": ("config.json", json.dumps(CONFIG, indent=1)),
    "torchtitan": ("job.toml", JOB),
}
IMPORTERS = {
    "megatron": import_megatron,
    "hf": import_hugging_face,
    "torchtitan": import_torchtitan,
}


@pytest.mark.parametrize("kind", SOURCES)
def test_one_error_names_all_unknown_settings_and_the_way_on(kind: str) -> None:
    source = written(*SOURCES[kind])
    errors = refused("import", source)
    assert errors.count("E871") == 1
    assert "2 unknown" in errors and "--ignore-unknown" in errors and "ignore_unknown" in errors
    assert all(name in errors.replace("-", "_") for name in ("new_key", "newer_key"))


@pytest.mark.parametrize("kind", SOURCES)
def test_unknown_settings_can_be_left_out_and_are_listed(kind: str) -> None:
    source = written(*SOURCES[kind])
    outcome = call("import", source, "--ignore-unknown", *MACHINE, "-o", "o.yaml")
    assert outcome.exit_code == 0 and "2 settings not modelled" in outcome.stdout
    text = Path("o.yaml").read_text(encoding="utf-8")
    ignored = [line for line in text.splitlines() if "ignored: simtrain does not know it" in line]
    assert [line.split()[2].strip('"-').replace("-", "_").split(".")[-1] for line in ignored] == [
        "new_key",
        "newer_key",
    ]
    assert IMPORTERS[kind](source, ["cluster=h100_sxm"], ignore_unknown=True)[1] == text


def test_thousands_of_unknown_settings_get_a_bounded_error() -> None:
    flags = " ".join(f"--unknown-{number} 3" for number in range(1000)) + f" --{'x' * 9000} 3"
    with pytest.raises(InputError, match=r"1,001 unknown arguments .* and 961 more") as caught:
        import_megatron(f"{BASE} {flags}")
    assert len(str(caught.value)) < 3000
    _, text = import_megatron(f"{BASE} {flags}", ignore_unknown=True)
    notes = [line for line in text.splitlines() if line.startswith("# - ")]
    assert len(notes) < 50 and "961 more arguments: ignored" in notes[-1]


@pytest.mark.parametrize(
    ("command", "part"),
    [
        ("pretrain_bert.py", "BERT's"),
        ("pretrain_t5.py", "T5's decoder"),
        ("/megatron/pretrain_vlm.py", "the vision encoder"),
        ("pretrain_hybrid.py --hybrid-layer-pattern 'MG-'", "the pattern has 'G', a gated delta"),
        ("pretrain_gpt.py --decoder-num-layers 12", "a decoder"),
        ("pretrain_gpt.py --vision-pretraining", "the vision encoder"),
    ],
)
def test_other_models_are_not_imported_as_a_gpt(command: str, part: str) -> None:
    script = written("run.sh", f"torchrun {command} {BASE} --new-key 3\n")
    for ignores in (False, True):
        with pytest.raises(InputError, match=f"E877 .* does not have: {part}"):
            import_megatron(script, ignore_unknown=ignores)


@pytest.mark.parametrize("value", ["[" * 50_000 + "]" * 50_000, "0x" + "f" * 16])
def test_extreme_values_of_a_job_are_refused(value: str) -> None:
    with pytest.raises(InputError, match=r"job\.toml: E879"):
        import_torchtitan(written("job.toml", f"{JOB}x = {value}\n"))


def test_a_long_header_or_value_of_a_log_is_read() -> None:
    log = f"{'-' * 100_000}\n{'-' * 20} arguments {'-' * 20}\nnum_layers .{' ' * 100_000}x\n"
    with pytest.raises(InputError, match="E872 num_layers x is not an integer"):
        import_megatron(written("log.txt", log))
