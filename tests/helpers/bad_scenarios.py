"""Malformed and illegal scenarios, with the expected errors."""

from dataclasses import dataclass

from tests.helpers.scenario_texts import MINIMAL, edited


@dataclass(frozen=True)
class BadScenario:
    """Scenario with the place and code of each expected error, and excerpts of the first error."""

    name: str
    content: str | bytes
    heads: tuple[str, ...]
    excerpts: tuple[str, ...]


def bad(
    name: str, content: str | bytes, head: str, *excerpts: str, also: tuple[str, ...] = ()
) -> BadScenario:
    return BadScenario(name, content, (head, *also), excerpts)


def adding(text: str) -> str:
    """Return the minimal scenario with more lines, from line 9."""
    return MINIMAL + text


def layers(value: str) -> str:
    return edited("layers: 48", f"layers: {value}")


UNREADABLE = [
    bad("empty file", "", ": E105", "the file is empty"),
    bad("only comments", "# model:\n", ": E105", "the file is empty"),
    bad("a list", "- model\n", ":1:1: E108", "does not contain a mapping of sections"),
    bad("a word", "model\n", ":1:1: E108", "does not contain a mapping of sections"),
    bad("two documents", adding("---\nmodel: {}\n"), ":9:1: E104", "a second document starts"),
    bad("not UTF-8", MINIMAL.encode() + b"name: caf\xe9\n", ":9:10: E103", "0xE9 is not UTF-8"),
    bad("UTF-16", MINIMAL.encode("utf-16"), ":1:1: E103", "save the file in UTF-8"),
    bad("control character", adding("name: a\x07b\n"), ":9:8: E106", "U+0007 is not allowed"),
    bad("no such character", adding('name: "\\U99999999"\n'), ":9:10: E106", "broken YAML"),
    bad(
        "tab indentation",
        edited("  micro", "\tmicro"),
        ":7:1: E106",
        "indent with spaces: YAML does not allow tabs there",
    ),
    bad("open bracket", adding("overlap: {pipeline: true\n"), ":9:10: E106", "broken YAML"),
    bad("open quote", adding('name: "what if\n'), ":9:7: E106", "broken YAML"),
    bad("two colons", edited("micro: 4", "micro: 4: 5"), ":7:11: E106", "not allowed in this"),
    bad("wrong indent", edited("  global", " global"), ":8:2: E106", "check the indentation"),
    bad(
        "duplicate key",
        edited("micro: 4", "micro: 4\n  micro: 8"),
        ":8:3: E107",
        "batch.micro is set twice, first at",
        "x.yaml:7:3",
    ),
    bad("duplicate section", adding("batch: {}\n"), ":9:1: E107", "batch is set twice"),
    bad("a number as key", adding("7: 8\n"), ":9:1: E109", "the key 7 is not a name"),
    bad("endless number", layers("1" + "0" * 5000), ":2:15: E110", "more than 400 digits"),
    bad("overflow", layers("1e999"), ":2:15: E110", "1e999 is too large for a 64-bit"),
    bad("an anchor", layers("&layers 48"), ":2:15: E111", "write the value out"),
    bad("a tag", layers("!!binary 48"), ":2:15: E111", "!!binary is not supported"),
    bad("a tag that lies", layers("!!bool 48"), ":2:15: E111", "!!bool is not supported here"),
]

WRONG_VALUES = [
    bad(
        "unknown section",
        adding("paralelism: {tensor: 8}\n"),
        ":9:1: E201",
        'unknown key "paralelism" at the top level',
        "did you mean parallelism?",
        "The keys there are name, description, program, model, parallelism",
    ),
    bad(
        "unknown key",
        edited("num_layers", "num_layer"),
        ":1:1: E202",
        "model.num_layers is missing",
        "add num_layers: 48 under model",
        also=(":2:3: E201",),
    ),
    bad(
        "the attribute's name",
        edited("global", "global_"),
        ":6:1: E202",
        "batch.global is missing",
        also=(":8:3: E201",),
    ),
    bad("nothing like a key", adding("zzz: 1\n"), ":9:1: E201", "fix: The keys there are"),
    bad("missing section", MINIMAL.split("batch")[0], ":1:1: E202", "batch is missing"),
    bad("empty section", adding("overlap:\n"), ":9:1: E203", "overlap must be a section", "null"),
    bad("section is a number", adding("overlap: 3\n"), ":9:10: E203", "not the integer 3"),
    bad(
        "an order of no framework",
        adding("placement: {order: tp-cp-ep-pp}\n"),
        ":9:20: E205",
        'placement.order is "tp-cp-ep-pp", but must be one of tp-cp-ep-dp-pp, tp-cp-ep-pp-dp',
        "did you mean tp-cp-ep-pp-dp?",
    ),
    bad("section is a list", adding("overlap: [1]\n"), ":9:10: E203", "not a list"),
    bad(
        "a quoted number",
        layers('"48"'),
        ":2:15: E203",
        'model.num_layers must be an integer, not the text "48"',
        "write 48, an integer without quotes or point",
    ),
    bad("a decimal point", layers("48.0"), ":2:15: E203", "not the decimal number 48.0"),
    bad(
        "a fraction",
        layers("4.5"),
        ":2:15: E203",
        "must be an integer",
        "write an integer, such as 48",
    ),
    bad("an exponent", layers("48e0"), ":2:15: E203", "write 48, an integer"),
    bad("underscores", edited("6144", "6_144"), ":3:16: E203", 'not the text "6_144"'),
    bad("a boolean count", layers("true"), ":2:15: E203", "not the boolean true"),
    bad("no value", edited("layers: 48", "layers:"), ":2:3: E203", "not null (nothing written)"),
    bad("NaN", layers(".nan"), ":2:15: E203", "not the decimal number .nan"),
    bad("infinity", layers(".inf"), ":2:15: E203", "not the decimal number .inf"),
    bad(
        "zero",
        layers("0"),
        ":2:15: E204",
        "model.num_layers is 0, but must be greater than or equal to 1",
        "such as 48",
    ),
    bad("negative", layers("-48"), ":2:15: E204", "is -48, but must be greater than"),
    bad(
        "huge",
        layers("9" * 30),
        ":2:15: E204",
        "9" * 30 + ", but must be less than or equal to 10000",
    ),
    bad(
        "yes",
        adding("overlap: {pipeline: yes}\n"),
        ":9:21: E203",
        'overlap.pipeline must be true or false, not the text "yes"',
        "write true (in YAML 1.2, yes is text)",
    ),
    bad("1 for true", adding("overlap: {pipeline: 1}\n"), ":9:21: E203", "not the integer 1"),
    bad("a number for text", adding("name: 530\n"), ":9:7: E203", 'write "530", in quotes'),
    bad("empty cluster", adding('cluster: ""\n'), ":9:10: E207", "at least 1 character"),
    bad(
        "unknown recompute",
        adding("recompute: selectve\n"),
        ":9:12: E205",
        "must be one of none, selective, ops, full",
        "did you mean selective?",
    ),
    bad(
        "unknown key of recompute",
        adding("recompute: {strategy: full, layers: 2}\n"),
        ":9:29: E201",
        "The keys of recompute are strategy, modules, saved_ops, method, num_layers, distribute, "
        "keep_microbatches",
    ),
    bad("no recompute", adding("recompute:\n"), ":9:1: E205", "nothing written"),
    bad("recompute is a list", adding("recompute: [full]\n"), ":9:12: E205", "is a list"),
    bad(
        "a word for a number",
        adding("recompute: {strategy: full, keep_microbatches: two}\n"),
        ":9:48: E203",
        'recompute.keep_microbatches must be an integer, not the text "two"',
        "such as 2 or auto",
    ),
    bad(
        "a negative number kept",
        adding("recompute: {strategy: full, keep_microbatches: -1}\n"),
        ":9:48: E204",
        "must be greater than or equal to 0",
    ),
    bad("ZeRO 4", adding("memory: {zero_stage: 4}\n"), ":9:22: E204", "less than or equal to 3"),
    bad("ZeRO true", adding("memory: {zero_stage: true}\n"), ":9:22: E203", "not the boolean"),
    bad("unknown schedule", adding("schedule: gems\n"), ":9:11: E205", "1f1b, gpipe"),
    bad(
        "unknown dtype",
        adding("precision: {compute: int8}\n"),
        ":9:22: E205",
        "one of bf16, fp16, fp32, fp8, fp4",
    ),
    bad("hardware is text", adding("hardware: h100\n"), ":9:11: E203", "must be a section"),
    bad(
        "everything at once",
        adding("parallelism:\n  tensr: 8\n  pipeline: -1\nrecompute: 3\n").replace(
            "layers: 48", "layers: x"
        ),
        ":2:15: E203",
        also=(":10:3: E201", ":11:13: E204", ":12:12: E205"),
    ),
]

ILLEGAL = [
    bad(
        "heads by tensor",
        adding("parallelism:\n  tensor: 128\n"),
        ":10:11: E301",
        "parallelism.tensor is 128, which does not divide model.num_attention_heads (64)",
        "reason: tensor parallelism gives each rank whole attention heads",
        "write parallelism.tensor: 64 or 32",
    ),
    bad(
        "hidden by heads",
        edited("hidden_size: 6144", "hidden_size: 6150"),
        ":4:24: E302",
        "model.num_attention_heads is 64, which does not divide model.hidden_size (6150)",
        "model.hidden_size: 6144",
    ),
    bad(
        "MLP by tensor",
        edited("seq_length", "ffn_hidden_size: 16385\n  seq_length") + "parallelism: {tensor: 4}\n",
        ":5:20: E303",
        "model.ffn_hidden_size is 16385",
        "model.ffn_hidden_size: 16384 or 16388",
    ),
    bad(
        "vocabulary by tensor",
        edited("seq_length", "vocab_size: 50257\n  seq_length") + "parallelism: {tensor: 8}\n",
        ":5:15: E304",
        "model.vocab_size is 50257",
        "Megatron-LM pads to a multiple of 128 x parallelism.tensor",
        "write model.vocab_size: 51200",
    ),
    bad(
        "layers by pipeline",
        adding("parallelism: {pipeline: 5}\n"),
        ":2:15: E305",
        "not a multiple of parallelism.pipeline x interleave (5 x 1 = 5)",
        "model.num_layers: 50 or 45",
        "parallelism.pipeline: 4 or 6",
    ),
    bad(
        "layers by pipeline and interleave",
        adding("parallelism: {pipeline: 8, interleave: 4}\n"),
        ":2:15: E305",
        "(8 x 4 = 32)",
        "model.num_layers: 32 or 64",
        "parallelism.interleave: 3",
    ),
    bad(
        "batch by microbatches",
        edited("global: 64", "global: 66"),
        ":8:11: E306",
        "batch.global is 66, not a multiple of batch.micro x parallelism.data (4 x 1 = 4)",
        "batch.global: 64 or 68",
        "batch.micro: 3",
    ),
    bad(
        "batch by replicas",
        adding("parallelism: {data: 3}\n"),
        ":8:11: E306",
        "(4 x 3 = 12)",
        "batch.global: 60 or 72",
        "parallelism.data: 2 or 4",
    ),
    bad(
        "sequence by tensor",
        edited("2048", "2047") + "parallelism: {tensor: 8, sequence_parallel: true}\n",
        ":5:15: E307",
        "model.seq_length is 2047",
        "model.seq_length: 2048",
        "parallelism.sequence_parallel: false",
    ),
    bad(
        "sequence parallel without tensor parallel",
        adding("parallelism:\n  sequence_parallel: true\n"),
        ":10:22: E308",
        "while parallelism.tensor is 1",
        "write parallelism.sequence_parallel: false, or parallelism.tensor: 2",
    ),
    bad(
        "interleave without pipeline",
        adding("parallelism: {interleave: 3}\n"),
        ":9:27: E309",
        "parallelism.interleave is 3 while parallelism.pipeline is 1",
        "write parallelism.interleave: 1, or parallelism.pipeline: 4",
    ),
    bad(
        "interleave over two stages",
        adding("parallelism: {pipeline: 2, interleave: 3}\n"),
        ":9:25: E310",
        "needs more than 2 stages",
        "write parallelism.pipeline: 4 or 8, or overlap.pipeline: true",
    ),
    bad(
        "microbatches by pipeline",
        edited("global: 64", "global: 60") + "parallelism: {pipeline: 8, interleave: 3}\n",
        ":8:11: E311",
        "replica runs 15 microbatches, but each chunk runs microbatches in groups of 8",
        "write batch.global: 64 or 32",
    ),
    bad(
        "interleaved schedule with one chunk",
        adding("parallelism: {pipeline: 4}\nschedule: interleaved\n"),
        ":10:11: E312",
        "schedule is interleaved while parallelism.interleave is 1",
        "write schedule: 1f1b or gpipe, or parallelism.interleave: 2",
    ),
    bad(
        "1f1b with chunks",
        adding("parallelism: {pipeline: 4, interleave: 2}\nschedule: 1f1b\n"),
        ":10:11: E313",
        "schedule is 1f1b while parallelism.interleave is 2",
        "write schedule: interleaved or looped_bfs, or parallelism.interleave: 1",
    ),
    bad(
        "groups without chunks",
        adding("parallelism: {pipeline: 4, microbatch_group_size: 8}\n"),
        ":9:51: E418",
        "while the schedule has no groups of its own (schedule is 1f1b)",
        "remove parallelism.microbatch_group_size",
    ),
    bad(
        "a group smaller than the pipeline",
        adding("parallelism: {pipeline: 8, interleave: 3, microbatch_group_size: 6}\n"),
        ":8:11: E311",
        "each chunk runs microbatches in groups of 6, of which each has at least 8, one per stage",
        "parallelism.microbatch_group_size: 8 or 16",
    ),
    bad(
        "a schedule whose stages wait for each other with blocking transfers",
        adding(
            "parallelism: {pipeline: 4, interleave: 2}\nschedule: zbv\noverlap: {pipeline: false}\n"
        ),
        ":10:11: E415",
        "overlap.pipeline is false, but stages 0, 1, 2 and 3 of schedule zbv would wait",
        "write overlap.pipeline: true, or schedule: interleaved",
    ),
    bad(
        "post-validation of a schedule of Megatron-LM",
        adding("parallelism: {pipeline: 4}\noverlap: {optimizer_post_validation: true}\n").replace(
            "model:\n", "model:\n  tied_embeddings: false\n"
        ),
        ":11:38: E450",
        "(schedule is 1f1b and parallelism.pipeline is 4)",
        "write schedule: zb_h1 or zb_h2, or overlap.optimizer_post_validation: false",
    ),
    bad(
        "a split of matrices without ranks",
        adding("parallelism: {tensor_split: hidden}\n"),
        ":9:29: E930",
        "parallelism.tensor is 1, but parallelism.tensor_split hidden needs 2 or more ranks",
        "write parallelism.tensor: 2 or 4, or remove parallelism.tensor_split",
    ),
    bad(
        "channels that ranks cannot share",
        adding("parallelism: {tensor: 4, tensor_split: hidden}\n")
        .replace("model:\n", "model:\n  kv_channels: 96\n")
        .replace("6144", "6146"),
        ":4:16: E932",
        "model.hidden_size is 6146, which 4 ranks along the axes",
        "write model.hidden_size: 6144 or 6148, or remove parallelism.tensor_split",
    ),
    bad(
        "ranks that form no square",
        adding("parallelism: {tensor: 8, tensor_split: 2d}\n"),
        ":9:23: E930",
        "parallelism.tensor_split 2d needs q² for a whole q of 2 or more ranks",
        "write parallelism.tensor: 4",
    ),
    bad(
        "heads that a row of ranks cannot share",
        adding("parallelism: {tensor: 4, tensor_split: 2d}\n").replace("heads: 64", "heads: 3"),
        ":4:24: E933",
        "model.num_attention_heads is 3, which 2 ranks along an axis",
        "write model.num_attention_heads: 2 or 4",
    ),
    bad(
        "sequences that ranks cannot share",
        adding("parallelism: {tensor: 4, tensor_split: 2d}\n").replace("micro: 4", "micro: 1"),
        ":7:10: E934",
        "batch.micro is 1, but 2 ranks",
        "write batch.micro: 2",
    ),
    bad(
        "a depth of ranks without layers",
        adding("parallelism: {tensor: 4, tensor_split: 2d, tensor_depth: 2}\n"),
        ":9:58: E935",
        "parallelism.tensor_depth is 2 while parallelism.tensor_split is 2d",
    ),
    bad(
        "a split of matrices with sequence parallelism",
        adding("parallelism: {tensor: 4, tensor_split: hidden, sequence_parallel: true}\n"),
        ":9:40: E931",
        "parallelism.tensor_split is hidden while parallelism.sequence_parallel is true",
    ),
    bad(
        "post-validation with tied embeddings",
        adding("parallelism: {pipeline: 4}\nschedule: zb_h1\n")
        + "overlap: {optimizer_post_validation: true}\n",
        ":11:38: E451",
        "overlap.optimizer_post_validation is true while model.tied_embeddings is true",
        "write model.tied_embeddings: false",
    ),
    bad(
        "scatter-gather with sequence parallel",
        adding("parallelism: {tensor: 8, sequence_parallel: true, scatter_gather: true}\n"),
        ":9:67: E314",
        "while parallelism.sequence_parallel is true",
        "parallelism.scatter_gather: false",
    ),
    bad(
        "gradients of another 16-bit type",
        adding("precision: {compute: bf16, gradients: fp16}\n"),
        ":9:39: E315",
        "precision.gradients is fp16 while precision.compute is bf16",
        "write precision.gradients: bf16 or fp32",
    ),
    bad(
        "overlapped transfers without interleaving",
        adding("parallelism: {pipeline: 4}\noverlap: {pipeline: true}\n"),
        ":10:21: E316",
        "has blocking transfers (schedule is 1f1b)",
        "write overlap.pipeline: false, or parallelism.interleave: 2",
    ),
    bad(
        "units without full recompute",
        adding("recompute:\n  strategy: selective\n  method: block\n  num_layers: 2\n"),
        ":11:11: E318",
        "method is block and recompute.num_layers is 2 while recompute.strategy is selective",
        "fix: write recompute.strategy: full",
    ),
    bad(
        "a unit longer than a chunk",
        adding("parallelism: {pipeline: 8}\nrecompute: {strategy: full, num_layers: 7}\n"),
        ":10:41: E319",
        "recompute.num_layers is 7, more than the layers of the largest chunk (6)",
        "fix: write recompute.num_layers: 6",
    ),
    bad(
        "nobody to distribute to",
        adding("recompute: {strategy: full, distribute: true}\n"),
        ":9:41: E320",
        "write recompute.distribute: false, or parallelism.tensor: 2 or 4",
    ),
    bad(
        "distributed twice",
        adding(
            "parallelism: {tensor: 8, sequence_parallel: true}\n"
            "recompute: {strategy: full, distribute: true}\n"
        ),
        ":10:41: E321",
        "while parallelism.sequence_parallel is true",
    ),
    bad(
        "exceptions from nothing",
        adding("parallelism: {pipeline: 4}\nrecompute: {keep_microbatches: 2}\n"),
        ":10:32: E322",
        "recompute.keep_microbatches is 2 while recompute.strategy is none",
    ),
    bad(
        "exceptions without a pipeline",
        adding("recompute: {strategy: full, keep_microbatches: 1}\n"),
        ":9:48: E323",
        "recompute.keep_microbatches is 1 while parallelism.pipeline is 1",
    ),
    bad(
        "more kept than outstanding",
        adding("parallelism: {pipeline: 4}\nrecompute: {strategy: full, keep_microbatches: 5}\n"),
        ":10:48: E324",
        "but the first stage has at most 4 outstanding microbatches",
        "fix: write recompute.keep_microbatches: 4",
    ),
    bad(
        "ZeRO 2 beside a pipeline",
        adding("parallelism: {pipeline: 4, data: 2}\nmemory: {zero_stage: 2}\n"),
        ":10:22: E325",
        "a pipeline accumulates sharded gradients (parallelism.pipeline is 4",
        "DeepSpeed refuses",
        "fix: write memory.zero_stage: 1 or 0, or parallelism.pipeline: 1",
    ),
    bad(
        "ZeRO with one replica",
        adding("memory: {zero_stage: 1}\n"),
        ":9:22: E326",
        "memory.zero_stage is 1 while parallelism.data is 1",
    ),
    bad(
        "several rules at once",
        adding("parallelism: {tensor: 7, pipeline: 5, data: 3}\n"),
        ":9:23: E301",
        "write parallelism.tensor: 8",
        also=(":9:23: E303", ":9:23: E304", ":2:15: E305", ":8:11: E306"),
    ),
]
