"""`--capture` runs a script with recorders; what they record is what the script starts."""

import os
import shlex
import shutil
from pathlib import Path

import pytest

from simtrain.errors import InputError
from simtrain.guests.importing.capture import capture
from tests.helpers.command_line import MACHINE, call, refused
from tests.helpers.imported import BASE, GPT, import_megatron, written

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash to run")


def captured(script: str, **env: str) -> list[str]:
    """Return the lines of what bash starts in a script, without the heading."""
    _, _, *lines = capture(Path(written("run.sh", script)), env).read_text("utf-8").splitlines()
    return lines


def test_a_capture_equals_what_is_read_without_running(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in [name for name in os.environ if name.startswith("SLURM_")]:
        monkeypatch.delenv(variable)
    script = written("run.sh", GPT)
    scenario, _ = import_megatron(str(capture(Path(script), None)))
    assert scenario.replace({"name": ""}) == import_megatron(script)[0].replace({"name": ""})


# What the reader does not follow, and the words that bash passes to the launcher.
FEATURES = {
    "f() { local n=$1; echo $((n * 2)); }\ntorchrun a.py $(f 4)": "8",
    "A=()\nfor I in 1 2 3; do A+=(--x $I); done\ntorchrun a.py ${A[@]}": "--x 1 --x 2 --x 3",
    "cat > env.sh <<'EOF'\nexport N=5\nEOF\nsource ./env.sh\ntorchrun a.py $N": "5",
    "echo 'print(9)' > f.py\nN=$(python3 f.py)\ntorchrun a.py $N": "9",
    "echo 'torchrun a.py $1' > in.sh\nsrun -N 2 bash in.sh 6": "6",
    "torchrun a.py $N 'a  b' ''; torchrun a.py $N 'a  b' ''": "3 'a  b' ''",
    "[ -f run.sh ] && N=1 || N=2\nexec torchrun a.py $N": "1",
}


@pytest.mark.parametrize("script", FEATURES)
def test_the_users_shell_decides_what_the_reader_does_not(script: str) -> None:
    (line,) = captured(f"#!/bin/bash\n{script}\n", N="3")
    assert shlex.split(line) == ["torchrun", "a.py", *shlex.split(FEATURES[script])]


def test_a_program_that_trains_does_not_run_and_others_do() -> None:
    written("pretrain_gpt.py", "open('ran', 'w')")
    written("other.py", "open('other', 'w')")
    lines = captured("#!/bin/bash\npython3 other.py\npython3 pretrain_gpt.py --x 1\n")
    assert lines == ["python3 pretrain_gpt.py --x 1"]
    assert Path("other").exists() and not Path("ran").exists()


@pytest.mark.parametrize("command", ["import", "run"])
def test_a_command_imports_what_a_script_of_a_cluster_starts(command: str) -> None:
    script = "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --gres=gpu:8\n"
    script += "for N in 8; do torchrun --nproc_per_node $N --nnodes $SLURM_NNODES a.py"
    words = (
        written("train.sbatch", f"{script} {BASE} --global-batch-size 64; done"),
        "--capture",
        *MACHINE,
    )
    outcome = call(command, *words)
    assert outcome.exit_code == 0, outcome.stderr
    assert command == "run" or "data: 16 " in outcome.stdout


FAILURES = {
    "exit 3": "E744 started no launcher, and ended with exit code 3",
    "sbatch job.sh": "E744 submits a job and starts no launcher",
    "sleep 30 & sleep 30": "E746 started no launcher in 0.5 s",
    "echo x\n$BIN/torchrun a.py": r"run.sh:2: E745 calls \$BIN/torchrun by its path",
}


@pytest.mark.parametrize("script", FAILURES)
def test_a_capture_without_a_launcher_is_refused(script: str) -> None:
    with pytest.raises(InputError, match=FAILURES[script]):
        capture(Path(written("run.sh", script)), None, seconds=0.5)


def test_only_scripts_are_captured() -> None:
    errors = refused("run", "llama3_8b", "--capture")
    assert "E908" in errors and "--capture" in errors
