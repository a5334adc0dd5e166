"""`--capture` runs a script with recorders; what they record is what the script starts."""

import os
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from simtrain.errors import InputError
from simtrain.importing.capture import Launch, capture
from simtrain.importing.recorder import is_training
from tests.helpers.command_line import MACHINE, call, refused
from tests.helpers.imported import BASE, GPT, LLAMA, import_megatron, written
from tests.importing.test_launch import LAUNCHES

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash to run")


def launches_of(script: str, *arguments: str) -> tuple[Launch, ...]:
    """Return what bash starts in a script."""
    with capture(["bash", written("run.sh", script), *arguments]) as captured:
        return captured.launches


READ = {"gpt": GPT, "llama": LLAMA} | {launch: f"#!/bin/bash\n{launch}\n" for launch in LAUNCHES}


@pytest.mark.parametrize("name", READ)
def test_a_capture_equals_what_is_read_without_running(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in [name for name in os.environ if name.startswith("SLURM_")]:
        monkeypatch.delenv(variable)
    script = written("run.sh", READ[name])
    written("pretrain_gpt.py", "")
    Path("x").mkdir()
    with capture(["bash", script]) as captured:
        scenario, text = import_megatron(str(captured.path))
    assert scenario.replace({"name": ""}) == import_megatron(script)[0].replace({"name": ""})
    assert ", line " not in text and "in bash run.sh." in captured.named(text)


# What the reader does not follow, and the words that bash passes to the launcher.
FEATURES = {
    "f() { local n=$1; echo $((n * 2)); }\ntorchrun a.py $(f 4)": "8",
    "A=()\nfor I in 1 2 3; do A+=(--x $I); done\ntorchrun a.py ${A[@]}": "--x 1 --x 2 --x 3",
    "while getopts n: O; do case $O in n) N=$OPTARG;; esac; done\ntorchrun a.py $N": "7",
    "cat > env.sh <<'EOF'\nexport N=5\nEOF\nsource env.sh\ntorchrun a.py $N": "5",
    "N=a.b.c; torchrun a.py ${N%.*} ${#N} ${N//./-} ${N^^}": "a.b 5 a-b-c A.B.C",
    "echo 'print(9)' > f.py\nN=$(python3 f.py)\ntorchrun a.py $N": "9",
    "echo 'torchrun a.py $1' > in.sh\nsrun -N 2 bash in.sh 6": "6",
    "mkdir -p b; cp $(command -v ls) b/torchrun; PATH=$PWD/b:$PATH\ntorchrun a.py 5": "5",
    "torchrun a.py 1 &": "1",
    "[ -f run.sh ] && N=1 || N=2\nexec torchrun a.py $N 'a  b' ''": "1 'a  b' ''",
    "torchrun a.py 1; torchrun a.py 1": "1",
}


@pytest.mark.parametrize("script", FEATURES)
def test_the_users_shell_decides_what_the_reader_does_not(script: str) -> None:
    *_, launch = launches_of(f"#!/bin/bash\n{script}\n", "-n", "7")
    assert list(launch.words) == ["torchrun", "a.py", *shlex.split(FEATURES[script])]


OF_A_CLUSTER = f"""#!/bin/bash
#SBATCH --nodes=4
#SBATCH --gres=gpu:8
set -euo pipefail
source ~/no/such/env.sh
. ./none.sh
module load cuda
MASTER=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
BIN=/no/such/place
MICRO=$($BIN/python3 -c 'print(2)' || echo 2)
"$BIN/torchrun" --nproc_per_node 8 --nnodes $SLURM_NNODES --master_addr $MASTER a.py {BASE} \
  --micro-batch-size $MICRO --global-batch-size 64
"""


@pytest.mark.parametrize("command", ["import", "run"])
def test_a_capture_gets_past_what_only_a_cluster_has(command: str) -> None:
    words = *command.split(), written("train.sbatch", OF_A_CLUSTER), "--capture", *MACHINE
    outcome = call(*words)
    assert outcome.exit_code == 0, outcome.stderr
    assert "Recorded, not started: torchrun a.py." in outcome.stderr
    if command.startswith("import"):
        assert "data: 32 " in outcome.stdout and "micro: 2 " in outcome.stdout
    else:
        assert "Imported train.sbatch: " in outcome.stderr and "/tmp" not in outcome.stderr


def test_a_script_of_a_cluster_is_read_without_a_capture_too() -> None:
    script = OF_A_CLUSTER.replace("$($BIN/python3 -c 'print(2)' || echo 2)", "2")
    outcome = call("run", written("train.sbatch", script), "--gpus", "32", *MACHINE)
    assert outcome.exit_code == 0, outcome.stderr
    assert "line 5: source ~/no/such/env.sh" in outcome.stderr.replace("\n", " ")


def test_only_scripts_are_captured() -> None:
    errors = refused("run", "llama3_8b", "--capture")
    assert "E908" in errors and "--capture" in errors


PROGRAMS = {
    True: [
        *("pretrain_gpt.py", "-u tools/run_train.py x", "-W ignore job.py --num-layers 3"),
        *("-m torch.distributed.run --nproc_per_node 8 x.py", "-um torch.distributed.launch x.py"),
        *("job.py --seq-length=8", "-m package.finetune"),
    ],
    False: [
        *("job.py --output x", "-m pip install x", "-m torch.utils.collect_env", "-V", "--version"),
        *("-c print(1) --num-layers 3", "- --num-layers 3", "constraint.py", ""),
    ],
}


def test_python_runs_all_programs_but_those_that_train() -> None:
    for trains, programs in PROGRAMS.items():
        for words in programs:
            assert is_training(words.split(), ["num_layers", "seq_length"]) is trains, words


def test_a_program_that_trains_does_not_run() -> None:
    written("pretrain_gpt.py", "open('ran', 'w')")
    (launch,) = launches_of("#!/bin/bash\npython pretrain_gpt.py\n")
    assert launch.words == ("python", "pretrain_gpt.py") and not Path("ran").exists()


def test_variables_of_slurm_are_those_of_the_headers_and_of_the_environment() -> None:
    script = "#!/bin/bash\n#SBATCH --nodes=4\ntorchrun a.py $SLURM_NNODES $N\n"
    with capture(["bash", written("run.sh", script)], {"N": "3", "TOKEN": "s3cret"}) as captured:
        (launch,) = captured.launches
        files = [*captured.path.parent.rglob("*")]
        texts = [file.read_text(encoding="utf-8") for file in files if file.is_file()]
    assert launch.words[2:] == ("4", "3") and launch.environment == {"SLURM_NNODES": "4"} | {
        "SLURM_JOB_NUM_NODES": "4"
    }
    assert not any("s3cret" in text for text in texts)
    assert not captured.path.parent.exists()


def test_the_command_says_that_it_runs_the_script(capfd: pytest.CaptureFixture[str]) -> None:
    script = f"echo from the script\nfor N in 2; do torchrun --nproc_per_node $N a.py {BASE}; done"
    words = "--gpus", "16", "--capture", *MACHINE, "--", "bash", written("run.sh", script)
    outcome = call("import", *words)
    assert outcome.exit_code == 0 and "data: 16 " in outcome.stdout
    assert "Running: bash run.sh. Programs that it starts run" in outcome.stderr
    assert "Recorded, not started: torchrun a.py." in outcome.stderr
    assert capfd.readouterr().err == "from the script\n"


def test_a_command_that_does_not_say_its_machine_gets_one_before_its_words() -> None:
    script = written("run.sh", f"torchrun a.py {BASE}")
    errors = refused("import", "--capture", "--", "bash", script)
    assert "E881 the file does not say its machine" in errors
    assert "import --capture --set cluster=h100_sxm -- bash run.sh; or simtrain" in errors


FAILURES: dict[str, tuple[Sequence[str], str]] = {
    "no launcher": (["bash", "-c", "exit 3"], "E744 started no launcher, .* exit code 3"),
    "a submission": (["bash", "-c", "sbatch job.sh"], "E744 submits a job with sbatch"),
    "no such program": (["no_such_program", "x"], "E745 cannot be started: No such file"),
    "no program": (["run.sh"], "fix: write --capture -- bash run.sh"),
    "too slow": (["bash", "-c", "sleep 30 & sleep 30"], "E746 started no launcher in 0.3 s"),
}


@pytest.mark.parametrize("name", FAILURES)
def test_a_capture_without_a_launcher_is_refused(name: str) -> None:
    command, error = FAILURES[name]
    written("run.sh", "torchrun a.py")
    with pytest.raises(InputError, match=f"(?s).*{error}"), capture(command, seconds=0.3):
        pytest.fail("there is nothing to import")


def test_errors_name_the_command() -> None:
    script = written("run.sh", f"#!/bin/bash\ntorchrun a.py {BASE} --a-flag-of-ours 3\n")
    errors = refused("import", "--capture", "--", "bash", script)
    assert "bash run.sh: E871 --a-flag-of-ours is not a known argument" in errors


def test_several_sources_are_refused_without_capture() -> None:
    errors = refused("import", "run.sh", "other.sh")
    assert 'E906 unexpected argument "other.sh"; one file is imported' in errors
    assert errors.endswith("simtrain import run.sh\n")
