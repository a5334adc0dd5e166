"""Context parallelism that the frameworks refuse, with the expected errors."""

from tests.helpers.bad_scenarios import adding, bad, edited

_FUSED = "attention_backend: fused\n"
_RING = "parallelism: {{context: {}, context_communication: ring_self_attention}}\n"

BAD_CONTEXT = [
    bad(
        "context parallelism of unfused attention",
        adding("parallelism: {context: 2}\n"),
        ":9:24: E350",
        "parallelism.context is 2 while attention_backend is unfused",
        "fix: write attention_backend: fused, or parallelism.context: 1",
    ),
    bad(
        "communication of one context-parallel rank",
        adding("parallelism: {context_communication: a2a}\n"),
        ":9:38: E351",
        "parallelism.context_communication is a2a while parallelism.context is 1",
        "write parallelism.context_communication: p2p",
    ),
    bad(
        "neighbours of a plain ring",
        adding("parallelism: {context: 4, context_a2a: 2}\n" + _FUSED),
        ":9:40: E352",
        "write parallelism.context_a2a: null, or parallelism.context_communication: a2a+p2p",
    ),
    bad(
        "sequence by context",
        edited("2048", "2050") + "parallelism: {context: 4}\n" + _FUSED,
        ":5:15: E353",
        "model.seq_length is 2050, not a multiple of 2 x parallelism.context (2 x 4 = 8)",
        "write model.seq_length: 2048 or 2056, or parallelism.context: 5 or 1",
    ),
    bad(
        "sequence by context and tensor",
        edited("2048", "1936")
        + "parallelism: {tensor: 8, sequence_parallel: true, context: 4}\n"
        + _FUSED,
        ":5:15: E354",
        "model.seq_length is 1936, not a multiple of parallelism.tensor x context (8 x 4 = 32)",
        "write model.seq_length: 1920 or 1952, or parallelism.context: 2 or 1",
    ),
    bad(
        "a hierarchy without neighbours",
        adding("parallelism: {context: 8, context_communication: a2a+p2p}\n" + _FUSED),
        ":9:50: E355",
        "parallelism.context_a2a is not set, but must be a divisor of parallelism.context other",
        "write parallelism.context_a2a: 2 or 4, or parallelism.context_communication: p2p or a2a",
    ),
    bad(
        "a hierarchy of two ranks",
        adding(
            "parallelism: {context: 2, context_communication: a2a+p2p, context_a2a: 2}\n" + _FUSED
        ),
        ":9:72: E355",
        "write parallelism.context: 4 or 8",
    ),
    bad(
        "a hierarchy of one rank",
        adding("parallelism: {context_communication: a2a+p2p}\n" + _FUSED),
        ":9:38: E351",
        "parallelism.context_communication is a2a+p2p while parallelism.context is 1",
    ),
    bad(
        "a ring with a window",
        edited("seq_length: 2048", "seq_length: 2048\n  attention_window: 512")
        + "parallelism: {context: 2}\n"
        + _FUSED,
        ":6:21: E357",
        "model.attention_window is 512 while parallelism.context_communication is p2p",
        "write parallelism.context_communication: a2a, or model.attention_window: null",
    ),
    bad(
        "latent attention by all-to-alls",
        edited("seq_length: 2048", "seq_length: 2048\n  latent_attention: {kv_lora_rank: 512}")
        + "parallelism: {context: 2, context_communication: a2a}\n"
        + _FUSED,
        ":10:50: E358",
        "parallelism.context_communication is a2a while model.latent_attention is set",
        "write parallelism.context_communication: p2p",
    ),
    bad(
        "heads by context",
        adding("parallelism: {tensor: 16, context: 8, context_communication: a2a}\n" + _FUSED),
        ":9:36: E356",
        "parallelism.context is 8, which does not divide the 4 key heads per "
        "tensor-parallel rank (model.num_query_groups 64 / parallelism.tensor 16)",
        "write parallelism.context: 4 or 2, or parallelism.context_communication: p2p",
    ),
    bad(
        "ring self-attention of fused kernels",
        adding(_RING.format(2) + _FUSED),
        ":9:50: E920",
        "parallelism.context_communication is ring_self_attention while attention_backend is fused",
        "fix: write attention_backend: unfused, or parallelism.context_communication: p2p",
    ),
    bad(
        "uneven slices of ring self-attention",
        edited("2048", "2050") + _RING.format(4),
        ":5:15: E921",
        "model.seq_length is 2050, which parallelism.context (4) does not divide",
        "write model.seq_length: 2048 or 2052, or parallelism.context: 5 or 2",
    ),
    bad(
        "ring self-attention of query groups",
        edited("seq_length: 2048", "seq_length: 2048\n  num_query_groups: 8") + _RING.format(2),
        ":6:21: E922",
        "model.num_query_groups is 8, but model.num_attention_heads is 64",
        "write model.num_query_groups: 64",
    ),
    bad(
        "ring self-attention of latents",
        edited("seq_length: 2048", "seq_length: 2048\n  latent_attention: {kv_lora_rank: 512}")
        + _RING.format(2),
        ":10:50: E923",
        "parallelism.context_communication is ring_self_attention while model.latent_attention is",
        "write model.latent_attention: null",
    ),
    bad(
        "ring self-attention beside Mamba-2",
        edited("seq_length: 2048", "seq_length: 2048\n  layer_pattern: M*").replace(
            "num_layers: 48", "num_layers: 2"
        )
        + _RING.format(2)
        + "software: megatron_core\nattention_backend: unfused\n",
        ":6:18: E924",
        "model.layer_pattern is M* while parallelism.context_communication is ring_self_attention",
        "write model.layer_pattern: null",
    ),
    bad(
        "ring self-attention in a CUDA graph",
        adding(_RING.format(2) + "software: {cuda_graphs: true}\n"),
        ":9:50: E925",
        "context_communication is ring_self_attention while software.cuda_graphs is true",
        "write software.cuda_graphs: false",
    ),
    bad(
        "ring self-attention in a CUDA graph of modules",
        adding(_RING.format(2) + "software: {cuda_graph_modules: [attn, mlp]}\n"),
        ":9:50: E925",
        "while software.cuda_graph_modules is [attn, mlp]",
        "write software.cuda_graph_modules: [mlp]",
    ),
]
