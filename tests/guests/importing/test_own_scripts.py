"""Scripts that people write for their clusters become scenarios, or one answer says what lacks."""

import random
import re
import shlex
import shutil
from pathlib import Path

import pytest

from simtrain.errors import InputError
from simtrain.guests.importing.shell.script_reader import read_script
from simtrain.guests.importing.shell.syntax import Lines
from tests.helpers.command_line import call, refused
from tests.helpers.imported import BASE, import_megatron, mutated, written
from tests.helpers.shell_scripts import agrees, arguments_in_bash, ordinary_script

OWN = """\
#!/bin/bash
#SBATCH --job-name=pretrain
#SBATCH --nodes=4 --ntasks-per-node=8
#SBATCH --gres=gpu:h100:8
source ~/env.sh
module load cuda
TP=4 PP=2
POSITIONS=$(count_positions)
MICRO=2
if [[ $HOSTNAME == *dev* ]]; then
  MICRO=1
fi
[ "$PP" -gt 1 ] && CHUNKS="--num-layers-per-virtual-pipeline-stage 4" || CHUNKS=""
ARGS="
  --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32
  --group-query-attention --num-query-groups 8 --seq-length $LENGTH
  --max-position-embeddings $POSITIONS --normalization RMSNorm --swiglu --disable-bias-linear
  --position-embedding-type rope --untie-embeddings-and-output-weights
  --tokenizer-type HuggingFaceTokenizer --tokenizer-model $MODELS/meta-llama/Meta-Llama-3-8B
  --bf16 --use-distributed-optimizer --overlap-grad-reduce --a-flag-of-ours 3
"
our_own_setup --quiet
srun python pretrain_gpt.py $ARGS $CHUNKS --tensor-model-parallel-size $TP --sequence-parallel \\
  --pipeline-model-parallel-size $PP --micro-batch-size $MICRO --global-batch-size 256
"""


@pytest.mark.parametrize("command", ["import", "run"])
def test_the_second_try_is_an_answer(command: str) -> None:
    words = [*command.split(), written("train.sh", OWN), "--ignore-unknown"]
    outcome = call(*words, "--env", "LENGTH=8192", "--env", "HOSTNAME=node-7")
    assert outcome.exit_code == 0, outcome.stderr
    if command.startswith("import"):
        text = outcome.stdout
        # 128256 tokens, padded to a multiple of 128 x 4
        comment = "# --tokenizer-type, --tokenizer-model, line 19: Llama 3, 128256 tokens, padded"
        assert "  vocab_size: 128512 " in text and comment in text
        assert all(field in text for field in ("interleave: 4 ", "data: 4 ", "micro: 2 "))
        assert "cluster: h100_sxm                 # --gres gpu:h100:8, line 4: H100" in text


def test_a_combination_that_is_refused_does_not_hide_what_is_unknown() -> None:
    script = OWN.replace("stage 4", "stage 5")
    errors = refused("import", written("train.sh", script))
    assert "does not divide 32 layers" not in errors or "--seq-length is $LENGTH" in errors
    values = "--env", "LENGTH=8192", "--env", "MICRO=2", "--ignore-unknown"
    assert "does not divide 32 layers" in refused("import", "train.sh", *values)


VARIABLES = {"NNODES": "3", "SIZE": "7B", "WIDE": "yes", "DEEP": "1", "GPUS_PER_NODE": "4"}


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash to ask")
def test_variables_of_env_have_the_effect_that_they_have_in_bash(tmp_path: Path) -> None:
    scripts = [ordinary_script(seed) for seed in range(25)]
    exports = "".join(f"export {name}={value}\n" for name, value in VARIABLES.items())
    actual = arguments_in_bash([exports + script for script in scripts], tmp_path)
    shares = []
    for script, expected in zip(scripts, actual, strict=True):
        commands = read_script(script, Lines(script, "run.sh"), answers=VARIABLES).commands
        (words,) = (words[1:] for words in commands if words[0].text == "torchrun")
        assert expected is None or agrees(words, expected), script
        shares += [word.unknown is None for word in words]
    assert sum(shares) / len(shares) > 0.9


ANSWERS = {"N=$(nproc)": 4, "source env.sh": 4, "[ -f x ] && N=8": 4, "N=${N:-8}": 4, "N=2": 2}


@pytest.mark.parametrize("line", ANSWERS)
def test_env_says_what_a_script_does_not_decide_and_nothing_else(line: str) -> None:
    train = f"python pretrain_gpt.py {BASE} --tensor-model-parallel-size $N"
    script = written("run.sh", f"#!/bin/bash\n{line}\n{train}\n")
    scenario, _ = import_megatron(script, env={"N": "4"})
    assert scenario.parallelism.tensor == ANSWERS[line]


UNKNOWN = (
    *("N=$(count)", "for N in 1 2; do :; done", "[ -f x ] && N=4", "((N++))"),
    *("[[ $HOSTNAME == *dev* ]] && N=4 || N=2", "read N", "N=$HOSTNAME"),
    *("N=$((M + 1))", "case $(uname) in L*) N=4;; esac", ""),
)


@pytest.mark.parametrize("line", UNKNOWN)
@pytest.mark.parametrize("place", ["--num-layers $N", "$N", "--seq-length=$N"])
def test_a_remedy_of_an_unknown_value_never_leads_to_the_same_error(line: str, place: str) -> None:
    base = BASE.replace("--num-layers 24", "") if "layers" in place else BASE
    base = base.replace("--seq-length 2048", "") if "length" in place else base
    script = written("run.sh", f"#!/bin/bash\n{line}\npython pretrain_gpt.py {base} {place}\n")
    with pytest.raises(InputError) as caught:
        import_megatron(script)
    (fix,) = {problem.fix for problem in caught.value.problems if problem.code == "E874"}
    names = re.findall(r"--env (\w+)=", fix or "")
    fields = re.findall(r"--set ([\w.]+)=", fix or "")
    assert names or fields
    value = "2048" if "--" in place else "--swiglu"
    for name in names:
        assert import_megatron(script, env={name: value})[0]
    for field in fields:
        assert import_megatron(script, [f"{field}=2048"])[0]


@pytest.mark.parametrize("command", ["run", "cost --tokens 1B"])
def test_every_command_asks_for_a_batch_and_takes_the_one_that_it_writes(command: str) -> None:
    script = written("train.sh", f"#!/bin/bash\npython a.py {BASE} --micro-batch-size 1\n")
    name, *options = command.split()
    errors = refused(name, script, "--gpus", "8", *options, "--set", "cluster=h100_sxm")
    message, fix = errors.splitlines()
    assert message == "train.sh: E881 the file does not say the batch"
    assert call(*shlex.split(fix)[2:]).exit_code == 0


@pytest.mark.parametrize("seed", range(2))
def test_every_mutation_of_a_script_is_an_answer_or_an_error(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(30):
        written("mutated.sh", mutated(OWN, draw))
        try:
            env = {"LENGTH": "8192", "MICRO": "2"}
            import_megatron("mutated.sh", ignore_unknown=draw.random() < 0.5, env=env)
        except InputError as error:
            assert str(error)
