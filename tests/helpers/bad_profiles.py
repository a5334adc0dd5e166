"""Bad hardware profiles, with the expected errors."""

from dataclasses import dataclass

from simtrain.base.resources import find_profile

SHIPPED = find_profile("a100_sxm4_80gb").read_text(encoding="utf-8")


@dataclass(frozen=True)
class BadProfile:
    """Shipped profile with one change, and excerpts of the expected error.

    `at` is the start of the line that the error names, if it is not the changed line.
    """

    name: str
    old: str
    new: str
    excerpts: tuple[str, ...]
    at: str = ""

    @property
    def text(self) -> str:
        """Return the profile's text."""
        assert self.old in SHIPPED
        return SHIPPED.replace(self.old, self.new, 1)

    @property
    def line(self) -> int:
        """Return the number of the line that the error names, from 1."""
        if self.at:
            lines = self.text.splitlines()
            return 1 + next(at for at, line in enumerate(lines) if line.startswith(self.at))
        return 1 + SHIPPED[: SHIPPED.index(self.old)].count("\n")


def bad(name: str, old: str, new: str, *excerpts: str, at: str = "") -> BadProfile:
    return BadProfile(name, old, new, excerpts, at)


_COLLECTIVES = SHIPPED[SHIPPED.index("collectives:\n") : SHIPPED.index("fused_attention:\n")]
SOURCE = "    source: NVIDIA A100 architecture whitepaper\n"
BAD_PROFILES = [
    bad(
        "no unit",
        "300 GB/s",
        "300",
        "E206 intra_node.bandwidth.value: 300 has no unit",
        'fix: write "300 GB/s" or "300 Gb/s"',
    ),
    bad("wrong unit", "300 GB/s", "300 us", '"us" is a unit of time, not of bandwidth'),
    bad("only a prefix", "300 GB/s", "300 G", '"G" alone is ambiguous'),
    bad("unknown unit", "312 TFLOP/s", "312 flops", "gpu.peak_flops.value", "not a unit of"),
    bad("zero bandwidth", "300 GB/s", "0 GB/s", "intra_node.bandwidth", "must be above zero"),
    bad("no link to the host", "13.14 GB/s", "0 GB/s", "host_link.bandwidth", "must be above zero"),
    bad("negative Adam bandwidth", "4.95 GB/s", "-4.95 GB/s", "host_link.adam_bandwidth", "above"),
    bad("missing Adam bandwidth", "adam_bandwidth", "adam", "host_link.adam", at="host_link:"),
    bad("negative bandwidth", "200 Gb/s", "-200 Gb/s", "adapter_bandwidth", "above zero"),
    bad(
        "negative latency",
        "value: 8 us",
        "value: -8 us",
        "intra_node.point_to_point.latency.value",
        "must not be negative",
    ),
    bad(
        "NaN with a unit", "value: 8 us", "value: nan us", "latency.value", "is not a finite number"
    ),
    bad(
        "infinity with a unit",
        "value: 10 us",
        "value: inf us",
        "host.issue.value",
        "is not a finite number",
    ),
    bad(
        "NaN",
        "0.913",
        ".nan",
        "point_to_point.efficiency.value is .nan, but must be a finite number",
        "fix: write a finite number",
    ),
    bad("infinity", "1.052", ".inf", "intra_node.in_situ_speed.value is .inf", "finite"),
    bad(
        "efficiency above one",
        "0.913",
        "1.2",
        "E204 intra_node.point_to_point.efficiency.value is 1.2",
        "less than or equal to 1",
    ),
    bad("fraction of zero", "0.76\n", "0\n", "gemm.batched_fraction.value is 0", "greater than 0"),
    bad("negative slowdown", "0.4859", "-0.4859", "overlap.slowdown.value is -0.4859"),
    bad("slowdown above 1", "0.4859", "1.2", "overlap.slowdown.value is 1.2"),
    bad("tail above one", "0.7498", "1.7498", "gemm.tail_quantization.value is 1.7498"),
    bad(
        "text for a number", "value: 108", "value: many", 'must be an integer, not the text "many"'
    ),
    bad(
        "part of a processor", "value: 108", "value: 108.5", "gpu.num_sms.value must be an integer"
    ),
    bad("no processors", "value: 108", "value: 0", "gpu.num_sms.value is 0"),
    bad("yes is text", "calibrated: true", "calibrated: yes", "calibrated must be true or false"),
    bad("another version", "version: 1", "version: 2", "version is 2, but must be one of 1"),
    bad("empty source", SOURCE, '    source: ""\n', "gpu.num_sms.source", "at least 1 character"),
    bad("a bare number", "host:\n", "host: 3\nx:\n", "host must be a section"),
    bad("an empty tile", "{m: 256, n: 128,", "{m: 0, n: 128,", "gemm.tiles.value.0.m is 0"),
    bad("a tile too fast", "n: 128, relative_speed: 1.0", "n: 128, relative_speed: 1.5", "is 1.5"),
    bad(
        "half a range",
        "m: [2048, 32768]",
        "m: [2048]",
        "E202 gemm.valid_shapes.value.m.1 is missing",
        "fix: gemm.valid_shapes.value.m needs at least 2 values",
    ),
    bad("reversed range", "m: [2048, 32768]", "m: [32768, 2048]", "m runs from 32768 to 2048"),
    bad(
        "faster than the peak",
        "266.5 TFLOP/s",
        "366.5 TFLOP/s",
        "E206 gemm.mainloop_flops.value: multiplied by gemm.in_situ_speed it is 368.7 TFLOP/s",
        "above gpu.peak_flops 312 TFLOP/s",
    ),
    bad(
        "sustained above the peak",
        "253.5 TFLOP/s",
        "353.5 TFLOP/s",
        "E206 gemm.sustained_flops.value: 353.5 TFLOP/s is above gpu.peak_flops",
    ),
    bad(
        "collectives faster than the link",
        "value: 1.052",
        "value: 1.552",
        "E206 intra_node.in_situ_speed.value: multiplied by the efficiency 0.7449 of all_reduce",
        "it exceeds the link",
    ),
    bad(
        "faster than memory",
        "1.516 TB/s",
        "2.516 TB/s",
        "E206 memory_bound.fused_bandwidth.value: 2.516 TB/s is above "
        "gpu.memory_bandwidth 2.039 TB/s",
    ),
    bad(
        "streams faster than memory",
        "1.61 TB/s",
        "2.61 TB/s",
        "memory_bound.stream_bandwidth.value",
    ),
    bad(
        "no unit in a curve", "latency: 10 us", "latency: 10", "all_reduce.value.0.latency: 10 has"
    ),
    bad("a curve of one", "- num_ranks: 2", "- num_ranks: 1", "num_ranks is 1", "equal to 2"),
    bad(
        "a curve above one",
        "0.63009, 0.6458]",
        "0.63009, 1.1458]",
        "efficiency.11: 1.1458 is more than 2 GPUs",
    ),
    bad(
        "missing source",
        SOURCE,
        "",
        "E202 gpu.num_sms.source is missing",
        "add source",
        at="  num_sms:",
    ),
    bad(
        "missing value",
        "    value: 108\n",
        "",
        "E202 gpu.num_sms.value is missing",
        at="  num_sms:",
    ),
    bad(
        "unknown key",
        "num_sms:",
        "num_sm:",
        "E202 gpu.num_sms is missing",
        'E201 unknown key "num_sm" in gpu',
        "did you mean gpu.num_sms?",
        at="gpu:",
    ),
    bad(
        "duplicate key",
        "  num_sms:\n",
        "  peak_flops: 1\n  num_sms:\n",
        "E107 gpu.peak_flops is set twice, first at",
    ),
    bad(
        "missing section",
        "\nhost:",
        "\nhosts:",
        "E202 host is missing",
        'unknown key "hosts"',
        at="# NVIDIA",
    ),
    bad(
        "sizes that do not grow",
        "262144 B, 1048576 B",
        "262144 B, 262144 B",
        "E206 intra_node.all_reduce.value.0: array_bytes must grow, but 262144 follows 262144",
        at="      - num_ranks: 2",
    ),
    bad(
        "a larger array is faster",
        "0.073553, 0.16612",
        "0.073553, 0.96612",
        "262144 bytes would take less time than 65536 bytes: efficiency 0.96612 is too high",
        at="      - num_ranks: 2",
    ),
    bad(
        "a fraction too few",
        "0.073553, 0.16612",
        "0.073553",
        "12 array_bytes but 11 efficiency",
        at="      - num_ranks: 2",
    ),
    bad(
        "groups that do not grow",
        "    value:\n      - num_ranks: 2",
        "    value:\n      - num_ranks: 9",
        "E206 intra_node.all_reduce: num_ranks must grow from curve to curve, not [9, 4, 8]",
    ),
    bad("broken YAML", "host:\n", "host: [\n", "E106 broken YAML", at="    value: 10 us"),
]


def bad_cluster(name: str, entry: str, *excerpts: str) -> BadProfile:
    """Return a profile with one more entry of `cluster`, given as one line."""
    return bad(name, "  num_nodes:\n", f"  {entry}\n  num_nodes:\n", *excerpts)


def bad_collectives(name: str, entry: str, *excerpts: str) -> BadProfile:
    """Return a profile with a section `collectives` of one entry, given as one line."""
    return bad(name, _COLLECTIVES, f"collectives: {{{entry}}}\n", *excerpts)


def levels(*written: str) -> str:
    return f"levels: {{value: [{', '.join(written)}], source: a test}}"


LEAF = "{name: leaf, nodes: 32, oversubscription: 2.0}"
TREE = "{name: Simple, base_latency: 8 us, node_step: 3 us, efficiency: 0.9}"
BAD_PROFILES += [
    bad_cluster(
        "part of a node",
        "gpus_per_nvlink_domain: {value: 12, source: a test}",
        "E206 cluster.gpus_per_nvlink_domain.value: 12 is not a multiple of gpus_per_node (8)",
        "fix: an NVLink domain joins whole nodes: write a multiple of 8",
    ),
    bad_cluster(
        "part of a leaf",
        levels(LEAF, "{name: spine, nodes: 48, oversubscription: 1}"),
        "cluster.levels.value.1.nodes: 48 nodes are not a larger multiple of the 32 nodes of leaf",
        "fix: each level joins whole units of the level below: write 64 or another multiple of 32",
    ),
    bad_cluster(
        "a level of one node",
        levels("{name: leaf, nodes: 1, oversubscription: 1}"),
        "cluster.levels.value.0.nodes: 1 nodes are not a larger multiple of the 1 nodes of",
        "write 2 or another multiple of 1",
    ),
    bad_cluster(
        "two levels of one name",
        levels(LEAF, "{name: leaf, nodes: 64, oversubscription: 1}"),
        'E206 cluster.levels.value.1.name: two levels are named "leaf"',
    ),
    bad_cluster(
        "more uplinks than adapters",
        levels("{name: leaf, nodes: 32, oversubscription: 0.5}"),
        "E204 cluster.levels.value.0.oversubscription is 0.5",
        "greater than or equal to 1",
    ),
    bad_cluster("no levels", levels(), "E207 cluster.levels.value is a list: List should have"),
    bad_cluster(
        "an unknown key of a level",
        levels("{name: leaf, node: 32, oversubscription: 2}"),
        "E202 cluster.levels.value.0.nodes is missing",
        'unknown key "node" in cluster.levels.value.0',
    ),
    bad_collectives(
        "an unknown algorithm",
        "algorithm: {value: tre, source: a test}",
        'E205 collectives.algorithm.value is "tre", but must be one of auto, ring, tree',
        "did you mean tree?",
    ),
    bad_collectives(
        "an algorithm without numbers",
        "algorithm: {value: tree, source: a test}",
        "E206 collectives.algorithm.value: tree needs the entry collectives.tree",
        "fix: add collectives.tree, or write auto or ring",
    ),
    bad_collectives(
        "an efficiency above one",
        f"tree: {{value: [{TREE.replace('0.9', '1.9')}], source: a test}}",
        "E204 collectives.tree.value.0.efficiency is 1.9",
    ),
    bad_collectives(
        "a step without a unit",
        f"ring: {{value: [{TREE.replace('3 us', '3')}], source: a test}}",
        "E206 collectives.ring.value.0.node_step: 3 has no unit",
    ),
    bad_collectives(
        "a switch faster than the link",
        "switch: {latency: {value: 23 us, source: a test}, "
        "efficiency: {value: 1.2, source: a test}}",
        "E204 collectives.switch.efficiency.value is 1.2",
    ),
    bad_collectives(
        "nothing to choose", "", "E206 collectives: names no algorithm", "leave it out"
    ),
    bad_collectives(
        "a switch without effect on measured nodes",
        "switch: {latency: {value: 23 us, source: a test}, "
        "efficiency: {value: 0.7, source: a test}}",
        "E206 collectives.switch.efficiency.value: ",
    ),
]
