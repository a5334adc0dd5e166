"""Scripts that people write for their clusters become scenarios, or one answer says what lacks."""

import random
import re
import shlex
import shutil
from pathlib import Path

import pytest

from simtrain.errors import InputError
from simtrain.importing.shell.script_reader import Environment, read_script
from simtrain.importing.shell.syntax import Lines
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


def test_one_answer_says_everything_that_lacks() -> None:
    errors = refused("import", written("train.sh", OWN))
    heads = [line for line in errors.splitlines() if line.startswith("train.sh:")]
    assert [head.split()[1:4] for head in heads] == [
        ["E874", "--seq-length", "is"],
        ["E871", "--a-flag-of-ours", "is"],
        ["E874", "--micro-batch-size", "is"],
    ]
    assert "which line 10 sets under a condition on $HOSTNAME" in heads[2]
    assert "reason: it sets model.seq_length" in errors
    assert "add --env LENGTH=... or --set model.seq_length=..." in errors
    assert "--ignore-unknown" in errors


@pytest.mark.parametrize("command", ["import megatron", "run"])
def test_the_second_try_is_an_answer(command: str) -> None:
    words = [*command.split(), written("train.sh", OWN), "--ignore-unknown"]
    outcome = call(*words, "--env", "LENGTH=8192", "--env", "HOSTNAME=node-7")
    assert outcome.exit_code == 0, outcome.stderr
    assert "Simulated on" not in outcome.stderr
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
    scripts = [ordinary_script(seed) for seed in range(60)]
    exports = "".join(f"export {name}={value}\n" for name, value in VARIABLES.items())
    actual = arguments_in_bash([exports + script for script in scripts], tmp_path)
    environment = Environment(answers=VARIABLES)
    shares = []
    for script, expected in zip(scripts, actual, strict=True):
        commands = read_script(script, Lines(script, "run.sh"), environment).commands
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
    *("N=$(count)", "for N in 1 2; do :; done", "source setup.sh", "[ -f x ] && N=4", "((N++))"),
    *("[[ $HOSTNAME == *dev* ]] && N=4 || N=2", "read N", "eval $(program)", "N=$HOSTNAME"),
    *("N=$((M + 1))", "case $(uname) in L*) N=4;; esac", "shopt -s nullglob; N=4", ""),
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


HYBRID = (
    "--hidden-size 512 --num-attention-heads 8 --group-query-attention --num-query-groups 2 "
    "--seq-length 1024 --max-position-embeddings 1024 --bf16 --is-hybrid-model --squared-relu "
    "--disable-bias-linear --position-embedding-type none --normalization RMSNorm "
    "--attention-backend flash --use-mcore-models --export-model-type MambaModel "
    "--tokenizer-type HuggingFaceTokenizer --micro-batch-size 1 "
)
EXPERTS = (
    "--num-experts 8 --moe-router-topk 2 --moe-grouped-gemm --moe-permute-fusion "
    "--moe-router-score-function sigmoid --moe-router-enable-expert-bias --moe-router-dtype fp32 "
    "--moe-token-dispatcher-type allgather --moe-shared-expert-intermediate-size 512 "
    "--enable-experimental --use-fused-weighted-squared-relu "
)
PATTERNS = {
    "--hybrid-override-pattern M-M-M*- --mamba-num-heads 16": "M-M-M*-",
    "--hybrid-layer-pattern M-M*-M- --mamba-state-dim 256 --num-layers 7": "M-M*-M-",
    "--hybrid-override-pattern MM-M*-M --mamba-head-dim 80 --mamba-num-heads 8": "MM-M*-M",
    f"--hybrid-override-pattern MEMEM*EM --mamba-num-heads 16 {EXPERTS}": "MEMEM*EM",
    "--hybrid-layer-pattern M-M*|-MM- --pipeline-model-parallel-size 2": None,
}
SETTINGS = """\
#!/bin/bash
if [ -z ${{CHECKPOINT}} ]; then
    CHECKPOINT=nvidia/Nemotron-H-8B-Base-8K
    TOKENIZER_MODEL=nvidia/Nemotron-H-8B-Base-8K
else
    TOKENIZER_MODEL=${{CHECKPOINT}}
fi
MODEL_ARGS=" \\
    --trust-remote-code {} \\
"
"""


@pytest.mark.parametrize("pattern", [text for text, letters in PATTERNS.items() if letters])
def test_a_pattern_without_quotes_is_kept_and_said(pattern: str) -> None:
    script = written("nemotron.sh", SETTINGS.format(HYBRID + pattern))
    outcome = call("import", script, "--gpus", "8")
    assert outcome.exit_code == 0, outcome.stderr
    assert f'layer_pattern: "{PATTERNS[pattern]}"' in outcome.stdout
    assert "vocab_size: 131072" in outcome.stdout
    notes = " ".join(line.lstrip("# ") for line in outcome.stdout.splitlines()[:8])
    assert "is a pattern without quotes: bash would put in its place a file" in notes


@pytest.mark.parametrize("command", ["run", "search", "cost --tokens 1B"])
def test_every_command_asks_for_a_batch_and_takes_the_one_that_it_writes(command: str) -> None:
    script = written("nemotron.sh", SETTINGS.format(HYBRID + next(iter(PATTERNS))))
    name, *options = command.split()
    errors = refused(name, script, "--gpus", "8", *options, "--set", "cluster=h100_sxm")
    message, fix = errors.splitlines()
    assert message == "nemotron.sh: E881 the file does not say the batch"
    assert call(*shlex.split(fix)[2:]).exit_code == 0


CONFIG = """\
ENV_VARS:
  CUBLAS_WORKSPACE_CONFIG: :4096:8
  TOKENIZER: nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16
BEFORE_SCRIPT: |
  python -m torch.distributed.run quantize.py --num-layers 3
MODEL_ARGS:
  --hidden-size: 512
  --num-attention-heads: 8
  --hybrid-layer-pattern: M-M*|-MM-
  --spec: "[megatron.core.models.mamba.mamba_layer_specs mamba_stack_spec]"
  --mamba-num-heads: 16
  --seq-length: 1024
  --max-position-embeddings: ${POSITIONS}
  --tokenizer-type: HuggingFaceTokenizer
  --tokenizer-model: ${TOKENIZER}
  --pipeline-model-parallel-size: 2
  --micro-batch-size: 2
  --global-batch-size: 16
  --lr: 1.0e-5
  --bf16: true
  --data-path: ${DATA_PATH}/text
TEST_TYPE: regular
"""


def test_a_config_of_a_functional_test_is_a_scenario() -> None:
    scenario, text = import_megatron(written("model_config.yaml", CONFIG), gpus=8)
    assert scenario.model.layer_pattern == "M-M*-MM-" and scenario.model.vocab_size == 131072
    assert scenario.parallelism.layout == "Et*4|t*4L" and scenario.num_gpus == 8
    assert "# --micro-batch-size, line 17" in text
    errors = refused("run", "model_config.yaml")
    assert "E881 the file does not say how many GPUs it uses" in errors
    assert call("run", "model_config.yaml", "--gpus", "8").exit_code == 0


def test_an_unknown_value_of_a_config_is_said_by_env() -> None:
    config = CONFIG.replace("--hidden-size: 512", "--hidden-size: ${WIDTH}")
    errors = refused("import", written("model_config.yaml", config))
    assert "model_config.yaml:7:3: E874 --hidden-size is $WIDTH" in errors
    assert "add --env WIDTH=..." in errors
    assert import_megatron("model_config.yaml", env={"WIDTH": "512"})[0].model.hidden_size == 512


@pytest.mark.parametrize("seed", range(4))
def test_every_mutation_of_a_script_is_an_answer_or_an_error(seed: int) -> None:
    draw = random.Random(seed)
    hybrid = SETTINGS.format(HYBRID + list(PATTERNS)[3])
    for _ in range(60):
        written("mutated.sh", mutated(draw.choice([OWN, hybrid, CONFIG]), draw))
        try:
            env = {"LENGTH": "8192", "MICRO": "2"}
            import_megatron("mutated.sh", ignore_unknown=draw.random() < 0.5, env=env)
        except InputError as error:
            assert str(error)


def test_a_script_whose_launches_block() -> None:
    script = f"export CUDA_LAUNCH_BLOCKING=1\ntorchrun --nproc_per_node 8 pretrain_gpt.py {BASE}\n"
    text = import_megatron(written("run.sh", script), ["cluster=h100_sxm"])[1]
    assert "blocking_launches: true         # CUDA_LAUNCH_BLOCKING, line 1" in text
    script = written("run.sh", script.replace("BLOCKING=1", "BLOCKING=0"))
    assert "blocking_launches" not in import_megatron(script, ["cluster=h100_sxm"])[1]
