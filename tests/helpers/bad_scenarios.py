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
        "layers by pipeline",
        adding("parallelism: {pipeline: 5}\n"),
        ":2:15: E305",
        "not a multiple of parallelism.pipeline x interleave (5 x 1 = 5)",
        "model.num_layers: 50 or 45",
        "parallelism.pipeline: 4 or 6",
    ),
    bad(
        "microbatches by pipeline",
        edited("global: 64", "global: 60") + "parallelism: {pipeline: 8, interleave: 3}\n",
        ":8:11: E311",
        "replica runs 15 microbatches, but each chunk runs microbatches in groups of 8",
        "write batch.global: 64 or 32",
    ),
]
"""Rules; tests/scenario/test_every_rule.py has an example of each."""
