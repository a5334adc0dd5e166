# ruff: noqa: E501 (scripts are easier to compare on one line)
"""Bash scripts drawn from a grammar, and the arguments that bash passes to their launcher."""

from __future__ import annotations

import random
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from simtrain.importing.shell.expansion import Argument

NAMES = ("N", "M", "SIZE", "ARGS")
LAUNCH = 'torchrun "$N" "$M" "$SIZE" "$ARGS" $N $ARGS "${ARGS[@]}" ${M:-7}\n'
_VALUES = (
    *("24", "48", "7", "''", "abc", '"two words"', "'$N'", "$N", '"$M"', "${SIZE}x", "2+3", "0"),
    *("M-M*-", "'x?y [ab]c'"),
)
_EXPANSIONS = (
    '"${N:-5}"', "${M:-$N}", "${UNSET:-8}", "${UNSET-a}", "${N:+set}", "${UNSET:=9}", "$((N * 2))", "~",
    "$(( $N + 3 ))", "$((M))", "$((7 / 2 - 5 % 3))", "$((-7 / 2))", "$((1 << 2))", "$(echo 3)", "`echo 4`", "$'24'",
    "${N%8}", "${#N}", "${ARGS[1]}", "${ARGS[@]}", "$ARGS", "$UNSET", "$1", "${1:-6}", "$#", "a*", "{1,2}", "\\$N",
    "a\\\nb", "\"a\\nb\\\"\"", "${N/2/3}", "$RANDOM", "${SIZE:0:1}", "a#b", "$?",
)  # fmt: skip
_CONDITIONS = (
    '[ "$N" = 24 ]', "[ -z $UNSET ]", '[ -n "$M" ]', "[[ $N == 2* ]]", '[[ $M == "2*" ]]', "true", "false",
    "[ $N -gt 30 ]", "[[ $SIZE -le 24 && -n $M ]]", "[[ -z $UNSET || $N == x ]]", "! [ $N = 48 ]", '[ "$UNSET" = y ]',
    "[ -f nothing ]", "command -v nothing", '[[ ! ( $N = 24 || $M = 3 ) ]]', "[[ $N =~ ^2 ]]", "test $M != 24",
    "grep -q x nothing", "((N > 30))", "[[ $N == *2* ]]", "[[ $M != ?8 ]]", "[[ $HOSTNAME == *dev* ]]",
)  # fmt: skip
_ODD = (
    "let N=48", "((N++))", "((M+=24))", "declare -i N; N+=24", "read N <<< 48", "printf -v M 48", "eval N=48",
    "unset N", "N=48 python x", "N=48 | cat", "N=48 & wait", "(N=48)", "! N=48", "export M", "IFS=,", "shift",
    "for N in 48; do :; done", "for ((N=0; N<3; N++)); do M=$N; done", "for I in $UNSET; do N=9; done",
    "for I in 1 2; do M=$N; N=$I; done", "until true; do N=3; done", "while [ $# -gt 0 ]; do N=$1; shift; done",
    "case $N in 24) M=1;; 4*|abc) M=2;; *) M=3;; esac", "case $UNSET in x) N=1;; esac", "set -- 1 2 3; M=$2",
    "case $M in $N) SIZE=1;; [0-9]) SIZE=2;& *) SIZE=3;; esac", "f() { N=48; }; f", "f() { local N=3; M=$N; }; f",
    "f() { N=$1; }; f 9 8", "f() { M=8; }", "f() { [ $N = 24 ] && return; M=5; }; f", "function g { SIZE=$#; }; g a b",
    "f() { [ -f nothing ] && return; M=5; }; f", "cat <<EOF\nN=48\nfi\nEOF", ": ${M:=5}", "source ./nothing",
    '[ "$N" -gt 1 ] && M=8 || M=""', "[[ $N == 2* ]] || M=5 && SIZE=9", "N[0]=5", "ARGS[2]=x", "ARGS=(1 2)", "ARGS+=(3)",
    "ARGS+=4", "ARGS=(${ARGS[@]} $N)", "ARGS=5", "ARGS=()", 'ARGS=("$@" "a b" $M)', "ARGS=([3]=x y)", "N+=4", "M+=$N",
    "mapfile ARGS < /dev/null", "N=$(M=3; echo $M)", "typeset M=6", "export N=$M SIZE=4", "command export N=3",
    "set -eu", "wait", "bash -c 'N=48'", "# N=48\n", "N=3 # M=4", "if [ $N = 24 ]; then :; fi # '",
)  # fmt: skip


def drawn_script(seed: int) -> str:
    """Return a script that launches one command after some that may change its arguments."""
    draw = random.Random(seed)
    statements = [f"{name}={draw.choice(_VALUES)}" for name in NAMES]
    if draw.random() < 0.5:
        statements[-1] = 'ARGS=(a "b c")'
    statements += [_statement(draw, depth=0) for _ in range(draw.randint(1, 6))]
    return "\n".join(statements) + "\n" + LAUNCH


def _statement(draw: random.Random, depth: int) -> str:
    def inner() -> str:
        return _statement(draw, depth + 1)

    name = draw.choice(NAMES[:3])
    simple = f"{name}={draw.choice(_VALUES + _EXPANSIONS)}"
    kind = draw.randrange(12 if depth < 3 else 5)
    if kind < 3:
        return simple
    if kind < 5:
        return draw.choice(_ODD)
    condition = draw.choice(_CONDITIONS)
    joint, other = draw.choice(("&&", "||")), draw.choice(("&&", "||"))
    match kind:
        case 5:
            return f"if {condition}; then\n{inner()}\nelse\n{inner()}\nfi"
        case 6:
            return f"if {condition}\nthen\n{inner()}\nelif {draw.choice(_CONDITIONS)}; then {simple}; fi"
        case 7:
            return f"{condition} {joint} {simple}"
        case 8:
            return (
                f"{condition} {joint} {draw.choice(_CONDITIONS)} {other} {{ {simple}\n{inner()}\n}}"
            )
        case 9:
            return f"(\n{inner()}\n)"
        case 10:
            return f"{{\n{inner()}\n{simple}\n}} {draw.choice(('', '| cat', '&', '> out'))}"
    return f"{inner()}\n{inner()}"


_HEADS = (
    "#!/bin/bash\n# Runs a GPT.\nset -euo pipefail\n",
    "#!/usr/bin/env bash\nset -x\nexport CUDA_DEVICE_MAX_CONNECTIONS=1\n",
    "export NCCL_DEBUG=WARN NCCL_IB_TIMEOUT=22\nulimit -n 65536\ncd $(dirname $0)\n",
    "source /opt/conda/bin/activate\nexport PYTHONPATH=$PYTHONPATH:$PWD\n",
)
_SIZES = (
    'MODEL=${1:-7B}\nif [ "$MODEL" = 7B ]; then\n  LAYERS=32; HIDDEN=4096\nelif [ $MODEL == 70B ]; then\n'
    "  LAYERS=80\n  HIDDEN=8192\nelse\n  echo unknown size; exit 1\nfi\n",
    'LAYERS=24\nHIDDEN=1024\n[ -z "$WIDE" ] || HIDDEN=2048\n[[ -n $DEEP ]] && LAYERS=48\n',
    "SIZE=${SIZE:-13B}\ncase $SIZE in\n  7B) LAYERS=32 HIDDEN=4096 ;;\n  13B)\n    LAYERS=40\n    HIDDEN=5120\n"
    "    ;;\n  *) echo $SIZE; exit 1 ;;\nesac\n",
    "LAYERS=$((8 * 4)) # layers\nHIDDEN=$(($LAYERS * 128))\n",
    "while [ $# -gt 0 ]; do\n  case $1 in\n    --layers) LAYERS=$2; shift 2;;\n    *) shift;;\n  esac\ndone\n"
    "LAYERS=${LAYERS:-32}\nHIDDEN=4096\n",
    "sizes() {\n  local unit=1024\n  HIDDEN=$((unit * $1))\n}\nsizes 4\nLAYERS=36\n",
)
_NODES = (
    "GPUS=8; NODES=${NNODES:-2}\n",
    'GPUS=8\nNODES=1\nif [ ! -z "$MASTER" ]; then NODES=4; fi\n',
    'GPUS=${GPUS_PER_NODE:-8}\nNODES=2\nWORLD_SIZE=$(($GPUS*$NODES))\necho "$WORLD_SIZE GPUs"\n',
    'NODES=16 GPUS="8"\n: ${RANK:=0}\n',
)
_LOGS = (
    "LOGS=logs/$(date +%y%m%d)\nmkdir -p $LOGS\n",
    "cat > hostfile <<EOF\nLAYERS=3\nfi\nHIDDEN=$HIDDEN\nEOF\n",
    "nvidia-smi | head -3 || true\nfor HOST in a b; do echo $HOST; done\n",
    "LAYERS=2 python3 tools/check.py && echo ok\n(cd data && LAYERS=1)\ntrap 'echo done' EXIT\n",
    "if [ -f ckpt/latest ]; then LOAD='--load ckpt'; else echo fresh; fi\nsleep 1 &\nwait\n",
)
_ARGUMENTS = (
    'ARGS="\n  --num-layers $LAYERS \\\n  --hidden-size ${HIDDEN} \\\n  --swiglu"\n',
    "ARGS=(\n  --num-layers $LAYERS  # deep\n  --hidden-size $HIDDEN\n)\nARGS+=(--swiglu)\n",
    'ARGS="--num-layers=$LAYERS"\nARGS+=" --hidden-size $HIDDEN"\nif true; then ARGS="$ARGS --swiglu"; fi\n',
    'declare -a ARGS=("--num-layers" "$LAYERS" "--hidden-size $HIDDEN" --swiglu)\n',
)
_LAUNCHES = (
    "torchrun --nproc_per_node $GPUS --nnodes $NODES pretrain_gpt.py ${ARGS[@]} --bf16 2>&1 | tee log\n",
    "torchrun --nproc_per_node=$GPUS \\\n  --nnodes=$NODES pretrain_gpt.py \\\n  ${ARGS[@]} \\\n  --bf16\n",
    'CMD="torchrun --nproc_per_node $GPUS --nnodes $NODES pretrain_gpt.py ${ARGS[@]} --bf16"\necho $CMD\neval $CMD\n',
    'run() { torchrun --nproc_per_node $GPUS --nnodes $NODES "$@"; }\nrun pretrain_gpt.py ${ARGS[*]} --bf16\n',
    "OMP_NUM_THREADS=1 torchrun --nproc_per_node $GPUS --nnodes $NODES pretrain_gpt.py ${ARGS[@]} --bf16 &\nwait\n",
)


def ordinary_script(seed: int) -> str:
    """Return a script in the style of Megatron-LM's examples."""
    draw = random.Random(seed)
    heads, logs = draw.sample(_HEADS, 2), draw.sample(_LOGS, 2)
    parts = [heads[0], draw.choice(_SIZES), draw.choice(_NODES), *logs]
    return "".join([*parts, draw.choice(_ARGUMENTS), draw.choice(_LAUNCHES)])


def arguments_in_bash(scripts: Sequence[str], folder: Path) -> list[list[str] | None]:
    """Return what bash passes to `torchrun` in each script; None if it is not reached.

    Args:
        scripts: texts without effect outside of their folder.
        folder: an empty folder.
    """
    (folder / "empty").mkdir()
    # Other programs are not there, and succeed.
    launcher = "command_not_found_handle() { :; }\n"
    launcher += 'torchrun() { printf \'%s\\0\' "$@" > "$ASKED"; }\n'
    (folder / "launcher").write_text(launcher, encoding="utf-8")
    for number, script in enumerate(scripts):
        (folder / f"{number}.sh").write_text(script, encoding="utf-8")
    driver = 'cd empty; for ((i = 0; i < $1; i++)); do ASKED="../$i.out" BASH_ENV=../launcher PATH=/nothing "$BASH" "../$i.sh"; done'
    subprocess.run(
        ["bash", "-c", driver, "driver", str(len(scripts))],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=120,
        start_new_session=True,
    )
    outputs = [folder / f"{number}.out" for number in range(len(scripts))]
    return [
        output.read_text(encoding="utf-8").split("\0")[:-1] if output.exists() else None
        for output in outputs
    ]


def agrees(words: list[Argument], actual: list[str]) -> bool:
    """Whether the known words are those of bash; an unknown word can be any number of words."""
    pattern = "".join(
        "(?:[^\0]*\0)*?" if word.unknown else re.escape(word.text) + "\0" for word in words
    )
    return re.fullmatch(pattern, "".join(f"{word}\0" for word in actual)) is not None
