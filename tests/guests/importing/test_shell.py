"""The reader of scripts expands words as bash does, or calls them unknown."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from simtrain.errors import InputError
from simtrain.guests.importing.shell import syntax
from simtrain.guests.importing.shell.expansion import BashWord
from simtrain.guests.importing.shell.script_reader import read_script
from simtrain.guests.importing.shell.syntax import Lines
from tests.helpers.imported import BASE, GPT, LLAMA, import_megatron, written
from tests.helpers.shell_scripts import agrees, arguments_in_bash, drawn_script, ordinary_script

QUOTES = r"""
A="two words" B='$A' C=plain
D=$A-$B"$C"'x'
torchrun $A "$A" '$A' ${C}s "${C}"s a\ b "" $EMPTY "$D" --x=$C "a\$b\"c" \
  continued # not this
"""
ARRAYS = """
ONE=(a "b c")
ONE+=(d)
X="e f"
ALL=("${ONE[@]}" ${ONE[@]} "${ONE[*]}" $X "$X")
NONE=() L=([0]*3+[1]*58)
torchrun "${ALL[@]}" ${NONE[@]} "${NONE[@]}" pre"${ONE[@]}"post "$@" $* "${L[@]}"
"""
ARITHMETIC = """
N=3 M=4
torchrun $((N*M)) $(($N + ${M} / 2)) "$(( (N+1)*2 ))" $((N%2)) ${K:-$((N*2))} ${N:-9} ${N-9}
"""
CONDITIONS = """
SIZE=7 NAME=llama
if [ "$NAME" = gpt ]; then
    A=1
elif [[ $NAME == lla* && $SIZE -lt 8 ]] || [ -z "$NAME" ]; then
    A=2
    if [ ! -n "$NOTHING" ]; then A+=0; else A=wrong; fi
else
    A=3
fi
if [[ $SIZE -ge 70 ]]; then B=1; else B=2; fi
if [ $SIZE -eq 7 ] && ! [ $NAME != llama ]; then C=yes; fi
export D=${D:-$A} ; readonly E=$B
torchrun $A $B $C $D "$E"
"""
REDIRECTIONS = """
torchrun a 2>&1 b > /dev/null c 2>/dev/null
"""
WHOLE = {
    "quotes": QUOTES,
    "arrays": ARRAYS,
    "arithmetic": ARITHMETIC,
    "conditions": CONDITIONS,
    "redirections": REDIRECTIONS,
    "gpt": GPT.replace("python -m", "torchrun"),
    "llama": LLAMA.replace("exit 1", ":"),
}
needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash to ask")


def launched(script: str) -> list[BashWord]:
    """Return the words of the launcher as the reader expands them."""
    commands = read_script(script, Lines(script, "run.sh")).commands
    (words,) = (words[1:] for words in commands if words[0].text == "torchrun")
    return words


def value_after(line: str) -> str | None:
    """Return the value of N after a line, before which it is 24; None if it is unknown."""
    (word,) = launched(f'N=24\n{line}\ntorchrun "$N"\n')
    return None if word.unknown else word.text


def is_refused(script: str) -> bool:
    """Return whether the reader refuses the syntax of a script, and names the remedy."""
    try:
        read_script(script, Lines(script, "run.sh"))
    except InputError as error:
        assert "--capture" in str(error)
        return True
    return False


def known_share(scripts: list[str], folder: Path) -> float:
    """Return the share of known words, after a comparison of each script with bash."""
    scripts = [script for script in scripts if not is_refused(script)]
    words = [launched(script) for script in scripts]
    for script, own, actual in zip(scripts, words, arguments_in_bash(scripts, folder), strict=True):
        # A script can end before it starts the launcher.
        assert actual is None or agrees(own, actual), script
    unknown = [word.unknown is not None for own in words for word in own]
    return 1 - sum(unknown) / len(unknown)


@needs_bash
def test_words_equal_those_of_bash(tmp_path: Path) -> None:
    assert known_share([*WHOLE.values()], tmp_path) > 0.9


@needs_bash
def test_what_is_known_of_drawn_scripts_equals_bash(tmp_path: Path) -> None:
    scripts = [drawn_script(seed) for seed in range(70)]
    assert known_share(scripts, tmp_path) > 0.3


@needs_bash
def test_ordinary_scripts_are_known_almost_whole_and_equal_bash(tmp_path: Path) -> None:
    scripts = [ordinary_script(seed) for seed in range(40)]
    assert known_share(scripts, tmp_path) > 0.9


# Each line may change N, which is 24 before; bash gives the value. Drawn scripts have many more.
KNOWN = {
    "[ -f x ] && N=24": "24",
    "if [ -f x ]; then N=48; exit; fi": "24",
    "if [ -f x ]; then N=3; else N=3; fi": "3",
    "! N=48": "48",
    "while [ $# -gt 0 ]; do N=$1; shift; done": "24",
    "[[ a && b || c ]] && N=48": "48",
    "[[ ! a == b || c == c ]] && N=48": "48",
    "[ ! -z $N ] && N=48": "48",
    "N=(24 48); N=${N[1]}": "48",
    "N=(1 24 48); N=3; N=${N[1]}": "24",
    "N=*": "*",
    'N="é$N"; A=(ü $N); N="${A[1]}"': "é24",
    "N=$(( (N + 1) * 2 )) # x": "50",
    "N=${SLURM_NNODES:-8}": "8",
}
# A shell decides these, or they are not read.
UNKNOWN = (
    "N=$(echo M*)",
    "for ((N = 0; N < 3; N++)); do :; done",
    "f() { [ -f x ] && return; N=$1; }; f 8",
    "while getopts n: O; do N=$OPTARG; done",
    "unset N; N=${N:-3}",
    "declare -A M=([a]=48); N=${M[a]}",
    "N=~",
    "A=2+3; N=$((A*8))",
    "N=${N%4}",
    'export "N=48"',
    "IFS=,; N=3",
    "IFS=,; N=${M:-3}",
    "#SBATCH -N 2\nN=${SLURM_NNODES:-8}",
    "N=${HOME:-8}",
)


@needs_bash
def test_what_is_known_after_a_line_is_what_bash_says(tmp_path: Path) -> None:
    scripts = [f'N=24\n{line}\ntorchrun "$N"\n' for line in KNOWN]
    assert arguments_in_bash(scripts, tmp_path) == [[value] for value in KNOWN.values()]
    assert {line: value_after(line) for line in KNOWN} == KNOWN


def test_what_only_a_shell_follows_is_unknown() -> None:
    assert [line for line in UNKNOWN if value_after(line) is not None] == []


@pytest.mark.parametrize("line", ["N=$(echo 48)", "for N in 1 2; do :; done", "read N"])
@pytest.mark.parametrize("place", ["--num-layers $N", "--num-layers=$N", "$N"])
def test_an_unknown_value_names_the_log_and_its_place(line: str, place: str) -> None:
    base = BASE.replace("--num-layers 24", "") if "layers" in place else BASE
    text = f"#!/bin/bash\nN=24\n{line}\npython pretrain_gpt.py {base} {place}\n"
    with pytest.raises(InputError, match=r"run.sh:[34]:\d+: E874 .*\$") as caught:
        import_megatron(written("run.sh", text))
    assert "--capture" in str(caught.value)


# Neither the launch nor its arguments are known, and no variable is imported in their place.
LAUNCHES = {"run() { torchrun $X; }\nrun": r"arguments of torchrun are not known: \$X"}


@pytest.mark.parametrize("launch", LAUNCHES)
def test_a_launch_that_only_a_shell_follows_names_the_log(launch: str) -> None:
    script = f"#!/bin/bash\nARGS='{BASE}'\nTRAIN=x.py\n{launch}\n"
    with pytest.raises(InputError, match=LAUNCHES[launch]) as caught:
        import_megatron(written("run.sh", script))
    assert "--capture" in str(caught.value)


def test_parameters_of_a_function_are_read() -> None:
    script = f"ARGS='{BASE}'\nrun() {{ torchrun \"$@\" --bf16; }}\nrun pretrain_gpt.py $ARGS\n"
    assert import_megatron(written("run.sh", script))[0].precision.compute == "bf16"


# Each of these words may be the whole parallelism.
HIDDEN = ("$P", '"$P"', "$(f)", "`cat x`", "${P[@]}", "$1", "-$P", "{a,b}")
FLAGS = (
    *("", "--bf16", "--lr 1e-4", "--no-save-optim", "--data-path /d", "--log-params-norm"),
    *("--save x", "--auto-detect-ckpt-format", "--micro-batch-size 1"),
)


@pytest.mark.parametrize("word", HIDDEN)
@pytest.mark.parametrize("flag", FLAGS)
def test_no_unknown_word_is_taken_for_the_value_of_a_flag_that_has_none(
    flag: str, word: str
) -> None:
    text = f"f() {{ echo --swiglu; }}\nP=$(cat x)\npython pretrain_gpt.py {BASE} {flag} {word}\n"
    with pytest.raises(InputError, match="E874") as caught:
        import_megatron(written("run.sh", text))
    assert "is missing" not in str(caught.value)


REASONS = {
    "": ("$N", ""),
    "N=$(nproc)": ("$(nproc)", "which is the output of a program"),
    "N=$((M * 2))": ("$((M * 2))", ""),
    "N=24\nfor I in 1 2; do\n  N=$I\ndone": ("$N", "which line 2 sets in a loop"),
    "[ -f x ] && N=48": ("$N", "which line 1 sets under a condition that is not known"),
    "[ $HOSTNAME = x ] && N=1": ("$N", "which line 1 sets under a condition on $HOSTNAME"),
    "N=1\nread M N": ("$N", "which line 2 sets in a way that is not read"),
}


@pytest.mark.parametrize("before", REASONS)
def test_an_unknown_word_says_what_it_depends_on_and_why(before: str) -> None:
    (word,) = launched(f"{before}\ntorchrun $N\n")
    assert (word.unknown, word.reason, word.may_be_arguments) == (*REASONS[before], True)


def test_each_word_has_its_place_in_the_script() -> None:
    script = "N='48 96'\neval 'torchrun --layers $N'\n"
    assert [script[word.offset :][:2] for word in launched(script)] == ["--", "48", "96"]


REFUSED = (
    *("A='x", 'A="x', "A=(x", "A=${x", "A=$(x", "A=$((x", "A=`x", "fi", "if x\nfi", "a && ", "x )"),
    *("for do", "a;;"),
)


@pytest.mark.parametrize("script", REFUSED)
def test_a_script_whose_syntax_is_not_read_is_refused_with_its_place(script: str) -> None:
    with pytest.raises(InputError, match=r"run\.sh:\d+:\d+: E876") as caught:
        launched(script)
    assert "--capture" in str(caught.value)


def test_a_machine_without_shfmt_gets_its_name_and_the_way_around(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(syntax.sysconfig, "get_path", lambda name: str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match=r"run.sh: E884 .*shfmt") as caught:
        launched("torchrun x")
    assert "--capture" in str(caught.value)


TOO_LARGE: dict[str, Callable[[], str]] = {
    "doubled texts": lambda: "A=8\n" + "A=$A$A\n" * 40,
    "a function that calls itself": lambda: "f() { f; }\nf\n",
    "a function that calls itself twice": lambda: "f() { $1 && f $2; f $3; }\nf\n",
    "a long script": lambda: "A=" + "x" * syntax.MAX_CHARACTERS,
}


@pytest.mark.parametrize("case", TOO_LARGE)
def test_scripts_beyond_a_limit_are_refused(case: str) -> None:
    with pytest.raises(InputError, match=r"run\.sh:\d+:\d+: E879"):
        launched(TOO_LARGE[case]())
