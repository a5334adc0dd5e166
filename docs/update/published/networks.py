"""All-reduces and all-gathers over nodes, measured and published by others.

The figures of `PUBLISHED` are over whole H100 and H200 nodes with networks of 3.2 Tb/s per node, as
in the profiles. No profile is fitted on these figures, except on one that `A100_TWO_NODES` names.
"""

from dataclasses import dataclass

from simtrain.workload.work import CollectiveKind

MIB = 2**20


@dataclass(frozen=True)
class PublishedTimes:
    """Times of nccl-tests by array size, over whole nodes of eight GPUs."""

    network: str
    source: str
    cluster: str
    kind: CollectiveKind
    num_nodes: int
    times_us: dict[int, float]


PUBLISHED = (
    PublishedTimes(
        network="p5, 32 x 100 Gb/s EFA",
        source="aws-samples/awsome-distributed-training, micro-benchmarks/nccl-tests",
        cluster="h100_sxm",
        kind=CollectiveKind.ALL_REDUCE,
        num_nodes=2,
        times_us={
            65_536: 135.1,
            262_144: 128,
            524_288: 123.7,
            1_048_576: 123.2,
            2_097_152: 147.2,
            4_194_304: 168.6,
            8_388_608: 204.8,
            16_777_216: 298.1,
            33_554_432: 439.7,
            67_108_864: 601.5,
            134_217_728: 870.3,
            268_435_456: 1468.2,
            536_870_912: 2559.2,
            1_073_741_824: 4607.6,
            2_147_483_648: 9074.5,
            4_294_967_296: 17286,
            8_589_934_592: 33605,
            17_179_869_184: 66132,
        },
    ),
    PublishedTimes(
        network="OCI, 16 x 200 Gb/s RoCE",
        source="oracle-quickstart/oci-hpc, documentation/Troubleshooting.md (NCCL 2.23.4)",
        cluster="h100_sxm",
        kind=CollectiveKind.ALL_REDUCE,
        num_nodes=2,
        times_us={
            1_073_741_824: 4478.8,
            2_147_483_648: 8722.7,
            4_294_967_296: 17228,
            8_589_934_592: 34280,
            17_179_869_184: 68359,
        },
    ),
    PublishedTimes(
        network="CoreWeave, 8 x 400 Gb/s InfiniBand",
        source="coreweave/nccl-tests, README (a job whose name says SHARP)",
        cluster="h100_sxm",
        kind=CollectiveKind.ALL_REDUCE,
        num_nodes=8,
        times_us={
            536_870_912: 2984.6,
            1_073_741_824: 5808,
            2_147_483_648: 11163,
            4_294_967_296: 22181,
            8_589_934_592: 43980,
        },
    ),
    PublishedTimes(
        network="A3 Ultra, 8 x 400 Gb/s RoCE",
        source="GoogleCloudPlatform/cluster-toolkit, gke-consumption-options/dws-flex-start",
        cluster="h200_sxm",
        kind=CollectiveKind.ALL_GATHER,
        num_nodes=2,
        times_us={
            65_536: 59.2,
            131_072: 59.58,
            262_144: 63.87,
            524_288: 64.83,
            1_048_576: 79.74,
            2_097_152: 78.41,
            4_194_304: 83.21,
            8_388_608: 94.35,
            16_777_216: 122.9,
            33_554_432: 184.2,
            67_108_864: 294.7,
            134_217_728: 495.4,
            268_435_456: 877.5,
            536_870_912: 1589.8,
            1_073_741_824: 3105.7,
            2_147_483_648: 6161.7,
            4_294_967_296: 12305,
            8_589_934_592: 24489,
        },
    ),
)

ALL_TO_ALL_US = {
    16 * MIB: 82.85,
    32 * MIB: 129.9,
    64 * MIB: 220.1,
    128 * MIB: 398.7,
    256 * MIB: 761.2,
    512 * MIB: 1461,
}
"""All-to-alls over the eight H100s of a node, in microseconds by bytes of the array.

MooreThreads/SimuMax, simu_tools/efficency_test/nccl_fit.py at commit 4dcaae5. Below 16 MiB its
times do not depend on the size.
"""

A100_TWO_NODES = (
    # network, adapters of a node, bytes/s of an adapter, GPUs of a node, array bytes, microseconds.
    # microsoft/vidur, data/profiling/network/a100_dgx/all_reduce.csv. Its network is not named, but
    # its bandwidth hardly matters for 2 KiB. The profile's inter_node.step_latency is from the
    # first row.
    ("vidur, A100 DGX", 8, 25e9, 1, 2048, 43.0),
    ("vidur, A100 DGX", 8, 25e9, 2, 2048, 29.0),
    ("vidur, A100 DGX", 8, 25e9, 4, 2048, 63.0),
    ("vidur, A100 DGX", 8, 25e9, 8, 2048, 65.0),
    # aws-samples/awsome-distributed-training, micro-benchmarks/nccl-tests, commit 7217859f.
    ("p4de, 4 x 100 Gb/s EFA", 4, 12.5e9, 8, 2048, 177.6),
    ("p4de, 4 x 100 Gb/s EFA", 4, 12.5e9, 8, 2**20, 309.4),
    ("p4de, 4 x 100 Gb/s EFA", 4, 12.5e9, 8, 32 * MIB, 1540.2),
    ("p4de, 4 x 100 Gb/s EFA", 4, 12.5e9, 8, 2048 * MIB, 51406.0),
)
"""All-reduces over two nodes of A100s."""

RING_SHARES = {
    16 * MIB: {2: 0.32, 4: 0.24, 8: 0.13, 16: 0.05, 32: 0.044, 64: 0.021, 128: 0.0087},
    256 * MIB: {2: 0.85, 4: 0.77, 8: 0.69, 16: 0.57, 32: 0.387, 64: 0.209, 128: 0.1027},
    1024 * MIB: {2: 0.92, 4: 0.93, 8: 0.9, 16: 0.76, 32: 0.74, 64: 0.563, 128: 0.314575},
    16384 * MIB: {2: 0.96, 4: 0.96, 8: 0.96, 16: 0.96, 32: 0.957, 64: 0.958, 128: 0.919175},
}
"""Bus bandwidth of rings against the nominal 400 GB/s of a node, by bytes and by nodes of 8 GPUs.

aliyun/SimAI, astra-sim-alibabacloud/inputs/ratio/nic_ratio.csv at commit cef83f9d: an input of
that simulator, whose origin it does not describe.
"""
