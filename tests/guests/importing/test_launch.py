"""The number of GPUs comes from headers of Slurm, srun, mpirun, torchrun or --gpus."""

from collections.abc import Iterator

import pytest

from simtrain.errors import InputError
from tests.helpers.command_line import MACHINE, call
from tests.helpers.imported import (
    BASE,
    import_hugging_face,
    import_megatron,
    import_torchtitan,
    written,
)

TRAIN = f"pretrain_gpt.py {BASE} --global-batch-size 1024"
LAUNCHES = {
    f"#SBATCH --nodes=32 --gpus-per-node=8\nsrun python {TRAIN}": 256,
    f"#SBATCH -N 4\n#SBATCH --gres=gpu:h100:8\nsrun -l python {TRAIN}": 32,
    f"#SBATCH -N4 --ntasks-per-node=4 # per node\nsrun bash -c 'cd x; python -u {TRAIN}'": 16,
    f"#SBATCH --nodes=2\n#SBATCH --mem=0\nsrun --nodes=4 --ntasks-per-node=8 python {TRAIN}": 32,
    f"#SBATCH --ntasks=64\nsrun python {TRAIN}": 64,
    f"#SBATCH --gpus=16\nsrun -n 8 python {TRAIN}": 8,
    f"#SBATCH -G 16\nsrun python {TRAIN}": 16,
    f"#SBATCH --gres=gpu:8 --nodes 4\nC='python {TRAIN}'\nsrun sh -c \"$C\"": 32,
    f"#SBATCH --nodes=4 --gres=gpu:8\nsrun torchrun --nproc-per-node gpu {TRAIN}": 32,
    f"#SBATCH --nodes=4 --ntasks-per-node=1\nsrun torchrun --nproc_per_node=8 {TRAIN}": 32,
    f"#SBATCH --nodes=4\ntorchrun --nnodes $SLURM_NNODES --nproc_per_node 2 {TRAIN}": 8,
    f"#SBATCH --nodes=4\ntorchrun --nproc_per_node 2 {TRAIN}": 2,
    f"#SBATCH --nodes=4 --ntasks-per-node=2\nN=$SLURM_NTASKS\nmpirun -np $N python {TRAIN}": 8,
    f"torchrun --standalone --nproc-per-node 2 {TRAIN}": 2,
    f"mpirun -np 16 python {TRAIN}": 16,
    f"python {TRAIN}": 1,
}


@pytest.mark.parametrize("launch", LAUNCHES)
def test_a_launch_says_the_number_of_gpus(launch: str) -> None:
    scenario, _ = import_megatron(written("run.sh", f"#!/bin/bash\n{launch}\n"))
    assert scenario.num_gpus == LAUNCHES[launch]


UNKNOWN = {
    f"#SBATCH --nodes=\n#SBATCH --ntasks-per-node=8\nsrun python {TRAIN}": 'E872 --nodes is ""',
    f"#SBATCH --nodes=your_nodes --gres=gpu:8\nsrun python {TRAIN}": "E872 --nodes is your_nodes",
    f"torchrun --nproc_per_node gpu --nnodes 2 {TRAIN}": "E872 --nproc_per_node is gpu",
    f"torchrun --nproc_per_node $GPUS --nnodes 2 {TRAIN}": r"E874 --nproc_per_node is \$GPUS",
    f"srun --nodes=$(cat x) --ntasks-per-node=8 python {TRAIN}": r"E874 --nodes is \$\(cat x\)",
}


@pytest.mark.parametrize("launch", UNKNOWN)
def test_a_number_of_gpus_that_is_unknown_is_asked_for(launch: str) -> None:
    script = written("run.sh", f"#!/bin/bash\n{launch}\n")
    with pytest.raises(InputError, match=UNKNOWN[launch]) as caught:
        import_megatron(script)
    assert "--gpus N" in str(caught.value)
    assert import_megatron(script, gpus=64)[0].num_gpus == 64


def test_a_script_that_starts_another_one_is_no_training() -> None:
    script = written("run.sh", f"#!/bin/bash\nexec bash inner.sh {BASE}\n")
    with pytest.raises(InputError, match="E875 bash starts no training script") as caught:
        import_megatron(script)
    assert "import the script that starts torchrun" in str(caught.value)


def test_of_several_commands_the_one_with_layers_trains() -> None:
    prepare = "python prepare.py --vocab-file x --tokenizer-type NullTokenizer\n"
    script = written("run.sh", f"#!/bin/bash\n{prepare}python {TRAIN}\n")
    assert import_megatron(script)[0].batch.global_ == 1024


SOURCES = {
    "megatron": ("run.sh", f"torchrun --nproc_per_node 8 {TRAIN} --tensor-model-parallel-size 4\n"),
    "hf": (
        "config.json",
        '{"model_type": "gpt2", "n_layer": 4, "n_positions": 64, "n_embd": 512, "n_head": 8}',
    ),
    "torchtitan": ("job.toml", '[model]\nname = "llama3"\nflavor = "8B"\n'),
}
READERS = {"megatron": import_megatron, "hf": import_hugging_face, "torchtitan": import_torchtitan}


@pytest.mark.parametrize("kind", SOURCES)
def test_gpus_decide_the_replicas_of_every_source(kind: str) -> None:
    source = written(*SOURCES[kind])
    scenario, text = READERS[kind](source, ["cluster=h100_sxm"], gpus=16)
    assert scenario.num_gpus == 16
    (line,) = lines_of(text, "  data: ")
    assert line.endswith("# --gpus")
    assert call("import", source, "--gpus", "16", *MACHINE).stdout == text


def lines_of(text: str, start: str) -> Iterator[str]:
    return (line for line in text.splitlines() if line.startswith(start))
