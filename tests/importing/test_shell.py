"""The reader of scripts expands words as bash does, or calls them unknown."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from simtrain.errors import InputError
from simtrain.importing.shell import script_reader, variables
from simtrain.importing.shell.lines import Lines
from simtrain.importing.shell.script_reader import read_script
from simtrain.importing.shell.variables import Argument
from tests.helpers.imported import BASE, GPT, LLAMA, import_megatron, written
from tests.helpers.shell_scripts import (
    LAUNCH,
    agrees,
    arguments_in_bash,
    drawn_script,
    ordinary_script,
)

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


def launched(script: str) -> list[Argument]:
    """Return the words of the launcher as the reader expands them."""
    commands = read_script(script, Lines(script, "run.sh")).commands
    (words,) = (words[1:] for words in commands if words[0].text == "torchrun")
    return words


def is_refused(script: str) -> bool:
    """Return whether the reader refuses the syntax of a script, and names `--capture`."""
    try:
        read_script(script, Lines(script, "run.sh"))
    except InputError as error:
        assert "or let your shell run it: --capture -- bash run.sh" in str(error)
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
    scripts = [drawn_script(seed) for seed in range(250)]
    assert known_share(scripts, tmp_path) > 0.3


@needs_bash
def test_ordinary_scripts_are_known_almost_whole_and_equal_bash(tmp_path: Path) -> None:
    scripts = [ordinary_script(seed) for seed in range(100)]
    assert known_share(scripts, tmp_path) > 0.9


# Each line may change N, which is 24 before; bash gives the value, None is unknown to the reader.
LINES: dict[str, str | None] = {
    '[ "$X" = y ] && N=48': "24",
    '[ -z "$X" ] || N=48': "24",
    "false && N=48": "24",
    'test "$X" = y && export N=48': "24",
    '[ "$X" = y ] && { N=48; }': "24",
    "[ -f x ] && N=48": None,
    "[ -f x ] && N=24": None,
    "[ -f x ] || exit 1": "24",
    "if [ -f x ]; then N=48; exit; fi": "24",
    "if [ -f x ]; then N=3; else N=3; fi": None,
    "cat <<EOF\nN=48\nfi\nEOF": "24",
    "N=48 python other.py": "24",
    "(N=48)": "24",
    "N=48 | cat": "24",
    "N=48 &": "24",
    "! N=48": "48",
    "f() { N=48; }": "24",
    "case $N in 24) N=1;; *) N=2;; esac": "1",
    "while [ $# -gt 0 ]; do N=$1; shift; done": "24",
    "A=2+3; N=$(($A*8))": "26",
    "[ abc = a* ] && N=48": "24",
    "[ a* = a* ] && N=48": "48",
    "N=$(echo M*)": None,
    "set -- M*; N=$#": None,
    "[[ $HOSTNAME == *dev* ]] && N=48": None,
    "[[ $HOSTNAME == *dev* ]] && M=48": "24",
    '[ "$N" -gt 1 ] && N=48 || N=""': "48",
    '[ "$N" -gt 30 ] && N=48 || N=""': "",
    "[[ abc == *b* ]] && N=48": "48",
    "source file; N=48; program; M=1": "48",
    "for N in 48; do :; done": None,
    "let N=48": None,
    "((N++))": None,
    "((N+=24))": None,
    "unset N; N=${N:-3}": None,
    "read N <<< 48": None,
    "printf -v N 48": None,
    "eval N=48": "48",
    'eval "$(program)"': None,
    "source file": None,
    "source file; N=48": "48",
    "declare -i N; N+=24": None,
    "N=(24 48)": None,
    "N=(24); N=3": None,
    "N=([3]=1 2); N=3": None,
    "N[2]=1; N=3": None,
    "N=$'24'": None,
    "N=*": "*",
    "N=~": None,
    "A=2+3; N=$((A*8))": None,
    "IFS=4": None,
    "trap 'N=3' DEBUG": None,
    "declare -n R=N; R=48": None,
    "readonly N; N=48": None,
    "N=$(echo 48)": None,
    "N=${N%4}": None,
}


@pytest.mark.parametrize("line", LINES)
def test_a_line_changes_a_name_as_in_bash_or_makes_it_unknown(line: str) -> None:
    (word,) = launched(f'N=24\n{line}\ntorchrun "$N"\n')
    assert (None if word.unknown else word.text) == LINES[line]


@needs_bash
def test_the_values_of_these_lines_are_those_of_bash(tmp_path: Path) -> None:
    known = {line: value for line, value in LINES.items() if value is not None}
    scripts = [f'N=24\n{line}\ntorchrun "$N"\n' for line in known if "[ -f x ] || exit" not in line]
    values = [value for line, value in known.items() if "[ -f x ] || exit" not in line]
    assert arguments_in_bash(scripts, tmp_path) == [[value] for value in values]


# Only a shell follows these. N is 24 before; each may change it.
OUTSIDE = (
    "f() { N=48; }; f",
    "f() { local N=48; }; f",
    "f() { local M=$1; N=$M; }; f 48",
    "f() { [ -f x ] && return; N=48; }; f",
    "f() { N=$1; }; for I in 1 2; do f $I; done",
    "for N in 1 2; do :; done",
    "for ((N = 0; N < 3; N++)); do :; done",
    "for I in 1 2; do N=$I; done",
    "until false; do N=48; break; done",
    "while getopts n: O; do N=$OPTARG; done",
    "select N in 1 2; do break; done",
    "set -- 48; N=$1",
    "set -- 1 2 3; N=$#",
    "N=$(echo 48)",
    "N=(24 48); N=${N[1]}",
    "N=${N%4}",
    "N=${#N}",
    "N=$((N > 3))",
    "N=$((N << 2))",
    "declare -A M=([a]=48); N=${M[a]}",
    "declare -i N; N=6*8",
    "coproc N=48",
    "[ a = a -a b = b ] && N=48",
    "[[ ( a == a ) && b == b ]] && N=48",
    "[[ abc =~ b ]] && N=48",
    "[[ ab == [a-c]b ]] && N=48",
    "read N <<< 48",
    "printf -v N 48",
)


@pytest.mark.parametrize("line", OUTSIDE)
@pytest.mark.parametrize("place", ["--num-layers $N", "--num-layers=$N", "$N"])
def test_what_only_a_shell_follows_is_unknown_and_names_capture(line: str, place: str) -> None:
    base = BASE.replace("--num-layers 24", "") if "layers" in place else BASE
    text = f"#!/bin/bash\nN=24\n{line}\npython pretrain_gpt.py {base} {place}\n"
    with pytest.raises(InputError, match=r"E874 .*\$") as caught:
        import_megatron(written("run.sh", text))
    assert "let your shell run it: --capture -- bash run.sh" in str(caught.value)


# Neither the launch nor its arguments are known, and no variable is imported in their place.
LAUNCHES = {
    'run() { torchrun "$@"; }\nrun pretrain_gpt.py $ARGS': "run is a function",
    "run() { python pretrain_gpt.py $ARGS $@; }\nrun --bf16": r"\$@ is among the arguments",
    'run() { torchrun "$@"; }\nrun $TRAIN': "the arguments of torchrun are not known",
    "torchrun() { :; }\ntorchrun pretrain_gpt.py $ARGS": "torchrun is a function",
    "case a in a) ;& b) N=3;; esac\npython pretrain_gpt.py $ARGS": ";& b.* is not expected here",
    'python pretrain_gpt.py $ARGS $"--bf16"': "is not read",
    "python pretrain_gpt.py $ARGS --seq-length $[4 * 8]": "is not read",
}


@pytest.mark.parametrize("launch", LAUNCHES)
def test_a_launch_that_only_a_shell_follows_names_capture(launch: str) -> None:
    script = f"#!/bin/bash\nARGS='{BASE}'\nTRAIN=x.py\n{launch}\n"
    with pytest.raises(InputError, match=LAUNCHES[launch]) as caught:
        import_megatron(written("run.sh", script))
    assert "let your shell run it: --capture -- bash run.sh" in str(caught.value)


@pytest.mark.parametrize(
    ("before", "name"),
    [
        ("", "$1"),
        ("", "$N"),
        ("N=$(nproc)", "$(nproc)"),
        ("N=`nproc`", "$(nproc)"),
        ("N=$((M * 2))", "$((M * 2))"),
        ("if [ -f x ]; then N=1; fi", "$N"),
        ("for I in 1 2; do N=$I; done", "$N"),
        ("case $(uname) in a) N=1;; esac", "$N"),
        ("if $(which x); then N=(1 2); fi", "$N"),
        ("M=abc; N=${M%c}", "$M"),
        ("#SBATCH --nodes=4\nN=${SLURM_NNODES:-1}", "$SLURM_NNODES"),
    ],
)
def test_an_unknown_word_names_what_it_depends_on(before: str, name: str) -> None:
    (word,) = launched(f"{before}\ntorchrun {'$1' if name == '$1' else '$N'}\n")
    assert word.unknown == name


REASONS = {
    "N=24\nfor I in 1 2; do\n  N=$I\ndone": "which line 3 sets in a loop",
    "N=24\n\n[ -f x ] && N=48": "which line 3 sets under a condition that is not known",
    "if [ -f x ]\nthen\n  N=1\nfi": "which line 3 sets under a condition that is not known",
    "for N in 1 2\ndo\n  :\ndone": "which line 1 sets in a loop",
    "N=1\nf() {\n  N=2\n}\nf": "which line 3 sets in a function",
    "N=1\n((N++))": "which line 2 sets in a way that is not read",
    "N=1\nread M N": "which line 2 sets in a way that is not read",
    "cat <<EOF\n${N:=3}\nEOF": "which line 1 sets in a way that is not read",
    "N=1\n\nsource file": "which line 3 can change",
    "N=1\nshopt -s extglob": "which line 2 can change",
    "(source file)": "",
    "M=1": "",
}


@pytest.mark.parametrize("script", REASONS)
def test_an_unknown_word_says_which_line_makes_it_unknown(script: str) -> None:
    (word,) = launched(f"{script}\ntorchrun $N\n")
    assert (word.unknown, word.reason) == ("$N", REASONS[script])


def test_an_option_that_a_condition_adds_can_be_several_arguments() -> None:
    (word,) = launched('[ -f x ] && MORE="--bf16 --fp8"\ntorchrun $MORE\n')
    assert word.may_be_arguments
    (word,) = launched("[ -f x ] && FILE=x\ntorchrun $FILE\n")
    assert word.unknown and not word.may_be_arguments


def test_each_word_has_its_place_in_the_script() -> None:
    script = "N='48 96'\neval 'torchrun --layers $N'\n"
    assert [script[word.offset :][:2] for word in launched(script)] == ["--", "48", "96"]


@pytest.mark.parametrize("script", ["A='x", 'A="x', "A=(x", "A=${x", "A=$(x", "A=$((x", "A=`x"])
def test_unclosed_quotes_and_brackets_are_refused(script: str) -> None:
    with pytest.raises(InputError, match=r"run\.sh:1:\d+: E876 the .* is not closed"):
        launched(script)


@pytest.mark.parametrize(
    "script", ["fi", "if x\nfi", "a && ", "x )", "cat <<EOF\nx\n", "for do", "a;;", "$A\\\nB"]
)
def test_a_script_that_bash_refuses_is_refused(script: str) -> None:
    with pytest.raises(InputError, match=r"run\.sh:\d+:\d+: E876"):
        launched(script)


TOO_LARGE: dict[str, Callable[[], str]] = {
    "doubled texts": lambda: "A=8\n" + "A=$A$A\n" * 40,
    "doubled arrays": lambda: "A=(8 9)\n" + 'A=("${A[@]}" "${A[@]}")\n' * 40,
    "a function that calls itself": lambda: "f() { f; }\nf\n",
    "a function that calls itself twice": lambda: "f() { $1 && f $2; f $3; }\nf\n",
    "nested blocks": lambda: "if a; then\n" * 20_000 + "fi\n" * 20_000,
    "nested defaults": lambda: "A=" + "${A:-" * 3000 + "}" * 3000,
    "nested commands": lambda: "A=" + "$(" * 3000 + ")" * 3000,
    "nested subshells": lambda: "( " * 3000 + ") " * 3000,
    "a chain of conditions": lambda: "if a; then b\n" + "elif c; then d\n" * 3000 + "fi\n",
    "a long script": lambda: "A=" + "x" * script_reader.MAX_CHARACTERS,
}


@pytest.mark.parametrize("case", TOO_LARGE)
def test_scripts_beyond_a_limit_are_refused(case: str) -> None:
    with pytest.raises(InputError, match=r"run\.sh:\d+:\d+: E879 .* than [\d,]+"):
        launched(TOO_LARGE[case]())


BOUNDED: dict[str, tuple[str, str | None]] = {
    "products wrap around at 64 bits as in bash": ("N=99999\n" + "N=$((N*N))\n" * 11, None),
    "long formulas": ("N=$((" + "1+" * 50_000 + "1))\n", "50001"),
    "nested formulas": ("N=$((" + "(" * 3000 + "1" + ")" * 3000 + "))\n", None),
    "long tests": ("N=1; [[ a == b" + " || a == b" * 5000 + " ]] && N=2\n", "1"),
    "long negations": ("N=1; [ " + "! " * 5000 + "a ] || N=2\n", None),
    "long lists": ("N=1\n" + "false || " * 5000 + "N=2\n", "2"),
    "long words": ("N=" + "-" * 150_000 + "\n", "-" * 150_000),
}


@pytest.mark.parametrize("case", BOUNDED)
def test_long_scripts_are_read_without_recursion(case: str) -> None:
    before, value = BOUNDED[case]
    (word,) = launched(f'{before}torchrun "$N"\n')
    assert (None if word.unknown else word.text) == value


def test_the_expansions_of_a_script_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    script = "A=1234567\n" + "A=$A$A\n" * 5 + LAUNCH
    assert launched(script)
    monkeypatch.setattr(variables, "MAX_EXPANSIONS", 400)
    with pytest.raises(InputError, match="E879 the script expands to more than 400 characters"):
        launched(script)
