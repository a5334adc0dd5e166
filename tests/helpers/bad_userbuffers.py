"""Userbuffers that Megatron-LM or Transformer Engine refuses, with the expected errors."""

from tests.helpers.bad_scenarios import adding, bad, edited

_SPLIT = "parallelism: {tensor: 8, sequence_parallel: true}\n"
_ON = "overlap: {userbuffers: true}\n"

BAD_USERBUFFERS = [
    bad(
        "Megatron-LM's name of userbuffers",
        adding("overlap: {tp_comm_overlap: true}\n"),
        ":9:11: E201",
        "write overlap.userbuffers",
    ),
    bad(
        "userbuffers without sequence parallelism",
        adding("parallelism: {tensor: 8}\n" + _ON),
        ":10:24: E377",
        "overlap.userbuffers is true while parallelism.sequence_parallel is false",
        "--tp-comm-overlap needs --sequence-parallel",
        "fix: write overlap.userbuffers: false, or parallelism.sequence_parallel: true",
    ),
    bad(
        "userbuffers without overlap backward",
        adding(_SPLIT + "overlap: {userbuffers: true, tensor_parallel: false}\n"),
        ":10:24: E371",
        "overlap.tensor_parallel: true",
    ),
    bad(
        "columns that four chunks do not divide",
        edited("hidden_size: 6144", "hidden_size: 6146\n  kv_channels: 64") + _SPLIT + _ON,
        ":3:16: E372",
        "model.hidden_size is 6146, not a multiple of 4",
        "write overlap.userbuffers: false, or model.hidden_size: 6144 or 6148",
    ),
    bad(
        "userbuffers of fp8 blocks",
        adding(
            _SPLIT
            + _ON
            + "attention_backend: fused\nprecision: {compute: fp8, fp8_recipe: blockwise}\n"
        ),
        ":10:24: E373",
        "overlap.userbuffers is true while products have several scales per tensor",
        "precision.fp8_recipe: delayed or tensorwise",
    ),
    bad(
        "userbuffers of further tokens",
        edited(
            "seq_length: 2048", "seq_length: 2048\n  position_embedding: rope\n  mtp_num_layers: 1"
        )
        + _SPLIT
        + _ON,
        ":12:24: E374",
        "overlap.userbuffers is true while model.mtp_num_layers is 1",
    ),
    bad(
        "userbuffers of fp32",
        adding(_SPLIT + _ON + "precision: {compute: fp32}\n"),
        ":10:24: E376",
        "precision.compute: bf16 or fp16",
    ),
]
