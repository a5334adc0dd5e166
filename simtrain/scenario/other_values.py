"""simtrain's names for values of other programs, and values that are not modelled.

Errors about an unknown value suggest to write these replacements.
"""

from __future__ import annotations

from types import MappingProxyType

_OWN_SCHEDULE = (
    "this schedule is not built in; write the path of a CSV file with its order "
    "(simtrain docs add_a_schedule)"
)
_UNIFORM = "write recompute: {strategy: full, method: uniform, num_layers: 1}"
_BLOCK = "write recompute: {strategy: full, method: block, num_layers: 1}"

OTHER_VALUES = MappingProxyType(
    {
        "schedule": {
            **dict.fromkeys(("zerobubble", "zero_bubble", "zero-bubble", "zb"), "write zb_h1"),
            **dict.fromkeys(("zb-h1", "zbh1", "zb-1p"), "write zb_h1"),
            **dict.fromkeys(("zb-h2", "zbh2", "zb-2p"), "write zb_h2"),
            **dict.fromkeys(("zb-v", "zb-vpp", "zbvzerobubble"), "write zbv"),
            **dict.fromkeys(("interleavedzerobubble",), "write zb1p"),
            **dict.fromkeys(("loopedbfs",), "write looped_bfs"),
            **dict.fromkeys(("pipedream-flush", "pipedream_flush", "dapple"), "write 1f1b"),
            **dict.fromkeys(("pipedream-2bw", "pipedream2bw"), "write pipedream_2bw"),
            **dict.fromkeys(("pipedream", "gems", "bitpipe"), _OWN_SCHEDULE),
            **dict.fromkeys(("1f1b-interleaved", "interleaved1f1b", "vpp"), "write interleaved"),
        },
        "attention_backend": dict.fromkeys(
            ("flash", "flash_attention", "flash_attn", "flash_attention_2", "sdpa", "te"),
            "write fused",
        )
        | dict.fromkeys(("local", "eager", "math"), "write unfused"),
        "precision.compute": {
            "float16": "write fp16",
            "bfloat16": "write bf16",
            "float32": "write fp32",
            "tf32": "write compute: fp32 and tf32: true",
            "mxfp8": "write compute: fp8 and fp8_recipe: mxfp8",
            "nvfp4": "write fp4",
            **dict.fromkeys(("mxfp4", "int8"), "it is not modelled"),
        },
        "recompute.strategy": {
            "false": "write none",
            "true": "write selective or full",
            "uniform": _UNIFORM,
            "block": _BLOCK,
            "activations": "write selective",
            "core_attn": "write selective",
        },
        "model.activation": {
            "silu": "write swiglu for silu with a gate; without one it is not modelled"
        },
        "model.position_embedding": {
            "alibi": "it is not modelled",
            "relative": "it is not modelled",
            "rotary": "write rope",
        },
        "parallelism.context_communication": {
            "ring": "write p2p",
            "ulysses": "write a2a",
            "allgather": "write all_gather",
        },
    }
)
"""Values of other programs by field of a scenario, in lower case, each with a remedy."""
