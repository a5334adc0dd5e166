"""The GPU that a script or a log names decides the cluster; one that says nothing is said first."""

import pytest

import simtrain
from simtrain.errors import InputError
from simtrain.guests.importing.gpus import GPUS, NamedGpu, gpus_in
from tests.guests.importing.test_bridge import EVEN
from tests.helpers.command_line import refused
from tests.helpers.imported import BASE, bridge_draft, import_megatron, written

TRAIN = f"srun python pretrain_gpt.py {BASE} --global-batch-size 1024"
SAID = {
    "#SBATCH --gres=gpu:h100:8": "h100_sxm",
    "#SBATCH --gpus-per-node h200:8": "h200_sxm",
    "#SBATCH -G a100:8": "a100_sxm4_80gb",
    '#SBATCH -C "h100&ib"': "h100_sxm",
    "#SBATCH -p gpu-h100": "h100_sxm",
    "#SBATCH --gres=gpu:a100_pcie:4": "a100_pcie",
    "#SBATCH --gres=gpu:8\n#SBATCH --partition=b300": "b300_sxm",
    "#SBATCH --gres=gpu:h100:8\n#SBATCH --partition=a100": "h100_sxm",
    "#SBATCH --constraint=a100|h100": "a100_sxm4_80gb",
    "#PBS -l select=4:ngpus=8:gpu_type=h100": "h100_sxm",
    '#BSUB -gpu "num=8:gmodel=NVIDIAH100_SXM"': "h100_sxm",
    "#SBATCH --job-name=b200": None,
    "#SBATCH --gres=gpu:8 # not b200": None,
}


def cluster_of(headers: str, more: str = "") -> tuple[str, str]:
    scenario, text = import_megatron(written("run.sh", f"#!/bin/bash\n{headers}\n{TRAIN} {more}\n"))
    return scenario.cluster, text


@pytest.mark.parametrize("headers", SAID)
def test_headers_say_the_gpu(headers: str) -> None:
    cluster, text = cluster_of(headers)
    assert cluster == (SAID[headers] or "h100_sxm")
    assert ("h100_sxm                 # default: not" in text) is (SAID[headers] is None)


ASSUMED = {
    "#SBATCH --constraint=a100|h100": "allows A100 and H100: A100 is taken",
    "#SBATCH --gres=gpu:h100_pcie:8": "no profile of this variant; SXM, 80 GB is taken",
}


def test_narrow_data_types_choose_among_the_gpus_that_are_allowed() -> None:
    assert cluster_of("#SBATCH --constraint=a100|h100|b200", "--fp8-format e4m3")[0] == "h100_sxm"
    narrow = "--fp8-format e4m3 --fp8-recipe mxfp8"
    assert cluster_of("#SBATCH --constraint=a100|h100|b200", narrow)[0] == "b200_sxm"


@pytest.mark.parametrize(
    ("header", "more", "message", "clusters"),
    [
        ("", "", "the file does not say its machine", ("h100_sxm", "a100_sxm4_80gb")),
        ("", "--fp8-format e4m3", "the file does not say its", ("h100_sxm", "b200_sxm")),
        ("", "--fp8-format e4m3 --fp8-recipe mxfp8", "the file does", ("b200_sxm", "gb200")),
        ("#SBATCH -G t4:8", "", "simtrain has no profile of T4", ("h100_sxm", "a100_sxm4_80gb")),
    ],
)
@pytest.mark.parametrize("command", ["import", "run"])
def test_a_machine_that_is_not_said_is_an_error_with_the_likeliest_two(
    command: str, header: str, more: str, message: str, clusters: tuple[str, str]
) -> None:
    file = written("run.sh", f"#!/bin/bash\n{header}\n{TRAIN} {more}\n")
    words = command, file, "--gpus", "8"
    errors = refused(*words)
    first, second = (f"simtrain {' '.join(words)} --set cluster={name}" for name in clusters)
    assert errors.startswith("run.sh: E881 ") and message in errors
    assert f"fix: {first}; or {second}" in errors
    with pytest.raises(InputError, match="E881") as caught:
        simtrain.import_(file, gpus=8)
    assert f'write overrides=["cluster={clusters[0]}"]' in str(caught.value)
    assert simtrain.import_(file, gpus=8, overrides=["cluster=gb200"]).cluster == "gb200"


def test_a_log_says_the_gpu() -> None:
    dashes = "-" * 20
    lines = "\n".join(
        f"  {name} ............ {value}"
        for name, value in {
            "num_layers": 4,
            "hidden_size": 512,
            "num_attention_heads": 8,
            "seq_length": 512,
            "padded_vocab_size": 32000,
            "world_size": 8,
            "global_batch_size": 8,
            "bf16": True,
        }.items()
    )
    log = f"{{}}\n{dashes} arguments {dashes}\n{lines}\n{dashes} end of arguments {dashes}\n"
    for line, cluster in {
        "0: device name: NVIDIA H100 80GB HBM3": "h100_sxm",
        "| NVIDIA A100-SXM4-80GB  On | 00000000:07:00.0 |": "a100_sxm4_80gb",
        "GPU 0: NVIDIA B200 (UUID: GPU-1)": "b200_sxm",
        "TransformerEngine: node b200-12": "h100_sxm",
    }.items():
        assert import_megatron(written("log.txt", log.format(line)))[0].cluster == cluster


def test_a_printed_config_has_the_gpu_of_its_log() -> None:
    log = f"GPU 0: NVIDIA H200 (UUID: GPU-1)\n{EVEN}"
    draft = bridge_draft(written("log.txt", log), gpus=64)
    assert draft.finished()[0].cluster == "h200_sxm"


@pytest.mark.parametrize("gpu", GPUS.values(), ids=lambda gpu: gpu.name)
def test_every_gpu_is_read_by_its_name(gpu: NamedGpu) -> None:
    name = gpu.name
    for text in (name, name.lower(), f"gpu:{name.lower()}:8", f"dgx-{name}", f"p_{name}_8"):
        assert [each.name for each in gpus_in(text)] == [name]
    assert gpu not in gpus_in(f"x{name}") and gpu not in gpus_in(f"{name}0")
