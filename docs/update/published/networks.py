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
