"""The reader of scripts expands words as bash does, or calls them unknown."""

import shutil
import subprocess

import pytest

from simtrain.errors import InputError
from simtrain.importing.megatron.shell import string, unknown_name, words_of_commands
from tests.helpers.imported import GPT, LLAMA

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
NONE=()
torchrun "${ALL[@]}" ${NONE[@]} "${NONE[@]}" pre"${ONE[@]}"post "$@" $*
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
SCRIPTS = {
    "quotes": QUOTES,
    "arrays": ARRAYS,
    "arithmetic": ARITHMETIC,
    "conditions": CONDITIONS,
    "redirections": REDIRECTIONS,
    "gpt": GPT.replace("python -m", "torchrun").replace(">& log.txt", ""),
    "llama": LLAMA.replace("2>&1 | tee log.txt", ""),
}
# The launcher prints its words, one per line; nothing else reaches the captured output.
LAUNCHER = "torchrun() { printf '%s\\n' \"$@\" >&3; }\necho() { :; }\nexec 3>&1 >/dev/null\n"


def words_of(script: str) -> list[str]:
    """Return the launcher's words as the reader expands them."""
    commands = [list(map(string, words)) for words in words_of_commands(script, "run.sh")]
    (launched,) = (words[1:] for words in commands if words[0] == "torchrun")
    return launched


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash to compare with")
@pytest.mark.parametrize("name", SCRIPTS)
def test_words_equal_those_of_bash(name: str) -> None:
    script = SCRIPTS[name].replace("exit 1", ":")
    environment = {"PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        ["bash", "-c", LAUNCHER + script], env=environment, capture_output=True, text=True
    )
    assert done.stdout.splitlines() == [
        # A variable without a value is unknown to the reader, and empty in bash.
        word
        for word in words_of(script)
        if not unknown_name(word)
    ]


@pytest.mark.parametrize(
    ("before", "word"),
    [
        ("", "$1"),
        ("", "$N"),
        ("N=$(nproc)", "$(nproc)"),
        ("N=`nproc`", "$(nproc)"),
        ("N=$((M * 2))", "$((M * 2))"),
        ("if [ -f x ]; then N=1; fi", "$N"),
        ("N=1\nif [ -f x ]; then N=2; else N=3; fi", "$N"),
        ("for I in 1 2; do N=$I; done", "$N"),
        ("case $X in a) N=1;; esac", "$N"),
        ("set_n() {\n N=1\n}", "$N"),
        ("if $(which x); then N=(1 2); fi", "$N"),
        ("M=abc; N=${M%c}", "$M"),
    ],
)
def test_words_that_cannot_be_evaluated_are_unknown(before: str, word: str) -> None:
    (found,) = words_of(f"{before}\ntorchrun {'$1' if word == '$1' else '$N'}\n")
    assert unknown_name(found) == word


def test_each_character_has_its_place_in_the_script() -> None:
    script = "N=48\ntorchrun --layers $N\n"
    (words,) = words_of_commands(script, "run.sh")
    assert [[script[at] for _, at in word] for word in words] == [list(string(w)) for w in words]


@pytest.mark.parametrize("script", ["A='x", 'A="x', "A=(x", "A=${x", "A=$(x", "A=$((x", "A=`x"])
def test_unclosed_quotes_and_brackets_are_refused(script: str) -> None:
    with pytest.raises(InputError, match=r"run\.sh:1:\d+: E876 the .* is not closed"):
        list(words_of_commands(script, "run.sh"))
