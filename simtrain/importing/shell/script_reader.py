"""Read the commands of a launch script, without running anything.

Read is the part of bash that launch scripts are written in: assignments, arrays, quotes, defaults
(`${N:-8}`), integer formulas, `[`, `[[`, `if`, `case`, `&&`, `||`, groups, subshells, pipelines,
jobs in the background, here-documents, and `eval` and `bash -c` of a text. It is read as in a shell
without parameters whose folder has no files. What a loop or a function assigns is unknown. All else
makes the names that it could assign unknown, and so every value that is derived from them: a script
that needs more is for `simtrain.importing.capture`, with which the user's own shell runs it.

The environment is what the user says of it (`Environment`), and empty otherwise. A sourced file can
set every variable, but defines no function that changes what the script itself sets later.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

from simtrain.errors import InputError
from simtrain.importing.shell.conditions import (
    Operand,
    decide_old_test,
    decide_test,
    evaluates_formula,
)
from simtrain.importing.shell.lines import Lines
from simtrain.importing.shell.script_parser import Parser, evaluated_text
from simtrain.importing.shell.syntax_tree import (
    NAME,
    AndOr,
    Arithmetic,
    Block,
    Case,
    Function,
    HereDocument,
    If,
    Literal,
    Loop,
    Node,
    Not,
    Opaque,
    Part,
    Simple,
    Subshells,
    Test,
    Variable,
    Word,
)
from simtrain.importing.shell.texts import (
    Segment,
    State,
    Text,
    Unknown,
    Value,
    characters,
    first_unknown,
    known_text,
)
from simtrain.importing.shell.variables import (
    ASSIGNING,
    ASSIGNMENT,
    IDENTIFIER,
    Argument,
    Variables,
    too_large,
)

MAX_CHARACTERS = 200_000
"""The longest script that is read; the longest of Megatron-LM has under 20,000."""
MAX_COMMANDS = 20_000
"""The most commands that a script may have."""
_MAX_CALLS = 150

_ELEMENT = re.compile(rf"{NAME}\[")
# An element of an array such as [0]*3+[1]*58, which sets no index, unlike [0]=3.
_INDEX = re.compile(r"\[(?![^]\[]*\](?!\+?=))")
_DECLARATIONS = {"export", "readonly", "declare", "typeset"}
_BATCH_JOB = re.compile("^#SBATCH ", re.MULTILINE)
_STARTER_NAMES = """
    accelerate apptainer bash conda deepspeed docker env find mamba mpiexec mpirun nohup numactl
    nsys python python3 ray sh singularity srun ssh sudo timeout torchrun uv
"""
_STARTERS = frozenset(_STARTER_NAMES.split())
"""Programs that may run a text among their arguments as a script."""


@dataclass(frozen=True, slots=True)
class Environment:
    """Values of variables that a script does not have.

    Args:
        variables: those that the script starts with, such as Slurm's.
        answers: those that a user says: in the environment, and wherever the script leaves them
            unknown, such as after N=$(nproc).
    """

    variables: Mapping[str, str] = field(default_factory=dict)
    answers: Mapping[str, str] = field(default_factory=dict)


NOTHING = Environment()


def commands_of(
    script: str, lines: Lines, environment: Environment = NOTHING
) -> list[list[Argument]]:
    """Return the expanded words of each command that a script runs or may run.

    Raises:
        InputError: the syntax is wrong or not supported, or the script exceeds a limit.
    """
    return _read(script, lines, environment).commands


def values_of(
    script: str, lines: Lines, environment: Environment = NOTHING
) -> list[list[Argument]]:
    """Return the words of each variable at the end of a script, or the commands in its text.

    Raises:
        InputError: as `commands_of`.
    """
    shell = _read(script, lines, environment)
    shell.has_ended, commands = False, list[list[Argument]]()
    for name, value in [*shell.variables.values.items()]:
        if isinstance(value, Value) and name.isidentifier():
            shell.commands = []
            with suppress(InputError):  # The text is no script.
                for text in value.elements:
                    shell.read_child(text)
            words = Parser(f"${{{name}[@]}}", lines).words()
            commands += shell.commands or [shell.variables.arguments(words)]
    return [words for words in commands if words]


def variable_of(
    name: str, script: str, lines: Lines, environment: Environment = NOTHING
) -> Argument | None:
    """Return the text of a variable at the end of a script; None if it has none.

    Raises:
        InputError: as `commands_of`.
    """
    shell = _read(script, lines, environment)
    words = shell.variables.arguments(Parser(f'"${name}"', lines).words())
    return words[0] if words and words[0].unknown is None and words[0].text else None


def files_of(script: str, lines: Lines, environment: Environment = NOTHING) -> dict[str, Argument]:
    """Return the files that a script writes from its here-documents, by their path.

    An unknown value in a path stands in it by its name, such as ds.$SLURM_JOB_ID.json.

    Raises:
        InputError: as `commands_of`.
    """
    return _read(script, lines, environment).files


def words_of(text: str, lines: Lines, environment: Environment = NOTHING) -> list[Argument]:
    """Return the words of a text of arguments, in which only quotes and $ have a meaning.

    Raises:
        InputError: a quote or bracket is not closed, or the text exceeds a limit.
    """
    _check_length(text, lines)
    answers = _values(environment.answers)
    variables = Variables(lines, answers, has_patterns=False)
    variables.values |= answers
    return variables.arguments(Parser(text, lines).words())


def _read(script: str, lines: Lines, environment: Environment) -> _Shell:
    _check_length(script, lines)
    answers = _values(environment.answers)
    is_batch_job = _BATCH_JOB.search(script) is not None
    variables = Variables(lines, answers, is_batch_job=is_batch_job)
    variables.values |= {**_values(environment.variables), **answers}
    shell = _Shell(variables)
    shell.read(Parser(script, lines).parse())
    return shell


def _values(texts: Mapping[str, str]) -> dict[str, Value]:
    return {name: Value(((Segment(text, 0),),)) for name, text in texts.items()}


def _check_length(text: str, lines: Lines) -> None:
    if len(text) > MAX_CHARACTERS:
        message = f"the text has {len(text):,} characters, more than {MAX_CHARACTERS:,}"
        raise too_large(message, lines, 0)


_State = tuple[dict[str, Value | Unknown], bool, bool]


@dataclass(slots=True)
class _Shell:
    """Reader of a script.

    Args:
        variables: the variables at the current command.
        functions: the bodies of each function of the script.
        commands: the words of the commands so far.
        files: the files that are written from here-documents.
        repetitions: the number of loops and calls around the current command.
        has_ended: whether the script has run `exit` or `exec`.
        doubt: the unknown variable of the last test, or "".
    """

    variables: Variables
    functions: dict[str, list[Node]] = field(default_factory=dict)
    commands: list[list[Argument]] = field(default_factory=list)
    files: dict[str, Argument] = field(default_factory=dict)
    repetitions: int = 0
    has_ended: bool = False
    doubt: str = ""
    depth: int = 0
    num_commands: int = 0

    # ------------------------------------------------------------------------------------ commands

    def read(self, node: Node) -> bool | None:
        """Read a command; return whether it succeeds, or None if that is unknown."""
        self.depth += 1
        self.num_commands += 1
        if isinstance(node, If | Loop | Case | Opaque):
            self.variables.offset = node.offset
        if self.depth > _MAX_CALLS or self.num_commands > MAX_COMMANDS:
            what = f"calls nested more than {_MAX_CALLS} deep"
            if self.depth <= _MAX_CALLS:
                what = f"more than {MAX_COMMANDS:,} commands"
            raise too_large(f"the script runs {what}", self.variables.lines, self.variables.offset)
        status = self._status(node)
        self.depth -= 1
        # What was true the first time may be false the next.
        return None if self.repetitions else status

    def _taint_redirections(self, texts: Iterable[str]) -> None:
        for text in texts:
            if ASSIGNING.search(text) or text.startswith("{"):
                self.variables.taint(text)

    def _status(self, node: Node) -> bool | None:
        match node:
            case Simple():
                return self._simple(node)
            case Test():
                return self._test(node)
            case Block():
                return self._block(node)
            case AndOr():
                return self._and_or(node)
            case Not():
                status = self.read(node.command)
                return None if status is None else not status
            case If():
                return self._if(node)
            case Case():
                return self._case(node)
            case Subshells():
                for command in node.commands:
                    self._subshell(command)
            case Loop():
                self._loop(node)
            case Function():
                self.functions.setdefault(node.name, []).append(node.body)
                return True
            case Opaque():
                for name in IDENTIFIER.findall(node.source):
                    self.variables.integer(name)
                if ASSIGNING.search(node.source):
                    self.variables.taint(node.source)
        return None

    def _block(self, node: Block) -> bool | None:
        self._taint_redirections(node.redirections)
        status: bool | None = True
        for command in node.commands:
            status = self.read(command)
            if self.has_ended:
                break
        return status

    def _and_or(self, node: AndOr) -> bool | None:
        status = self.read(node.first)
        for joint, command in node.rest:
            if self.has_ended:
                break
            if status is None:
                self._attempt([command], self._condition())
            elif status == (joint == "&&"):
                status = self.read(command)
        return status

    def _if(self, node: If) -> bool | None:
        for number, (condition, body) in enumerate(node.branches):
            status = self.read(condition)
            if self.has_ended:
                return None
            if status is None:
                rest = If(node.branches[number + 1 :], node.otherwise)
                self._attempt([body, rest], self._condition())
                return None
            if status:
                return self.read(body)
        return self.read(node.otherwise) if node.otherwise else True

    def _case(self, node: Case) -> bool | None:
        joined = self.variables.joined(node.word)
        text, self.doubt = known_text(joined, is_empty=True), first_unknown([joined])
        for number, (patterns, body) in enumerate(node.branches):
            operands = [self.variables.operand(pattern) for pattern in patterns]
            tests = [
                decide_test([Operand(text), Operand("==", "=="), operand]) for operand in operands
            ]
            if None in tests or self.repetitions:
                bodies = [body for _, body in node.branches[number:]]
                self._attempt(bodies, self._condition())
                return None
            if True in tests:
                return self.read(body)
        return True

    def _subshell(self, node: Node, is_opaque: bool = False) -> None:
        state = self._state()
        if is_opaque:
            self.variables.values, self.variables.is_forgotten = {}, True
        self.read(node)
        self._restore(state)

    def _condition(self) -> str:
        return f"under a condition {f'on {self.doubt}' if self.doubt else 'that is not known'}"

    def _attempt(self, nodes: Iterable[Node], doubt: str, assigned: str = "") -> None:
        """Read commands that may not run: all that they assign is unknown.

        Args:
            nodes: commands of which one runs, several or none.
            doubt: why it is unknown whether they run.
            assigned: a text with names that are assigned before.
        """
        self.variables.doubts.append(doubt)
        self.variables.taint(assigned, is_several=True)
        for node in nodes:
            state = self._state()
            self.read(node)
            if self.has_ended:  # What follows runs only if these commands do not.
                self._restore(state)
        self.variables.doubts.pop()

    def _state(self) -> _State:
        return {**self.variables.values}, self.variables.is_forgotten, self.has_ended

    def _restore(self, state: _State) -> None:
        self.variables.values, self.variables.is_forgotten, self.has_ended = state

    def _loop(self, node: Loop) -> None:
        """Read a loop: nothing is unknown if its body never runs."""
        num_commands = len(self.commands)
        if node.condition and not self.repetitions:
            if self.read(node.condition) is False or self.has_ended:
                return
            del self.commands[num_commands:]
        if node.words is not None and not self.variables.fields(node.words, is_quiet=True):
            return
        commands = (node.condition, node.body) if node.condition else (node.body,)
        self._repeat(Block(commands), "in a loop", node.assigned)

    def _call(self, name: str) -> None:
        """Read the bodies of a function, of which the parameters and the results are unknown."""
        values = self.variables.values
        parameters, values["@"] = self.variables.assigned("@"), Unknown(True)
        for body in self.functions[name]:
            self._repeat(body, "in a function")
        self.variables.values["@"] = parameters or Unknown(True)

    def _repeat(self, body: Node, doubt: str, assigned: str = "") -> None:
        """Read commands that run any number of times.

        Args:
            body: the commands.
            doubt: what repeats them.
            assigned: a text with names that each repetition assigns first.
        """
        self.repetitions += 1
        offset, num_commands = self.variables.offset, len(self.commands)
        # The second time, what the commands assigned before is unknown.
        for _ in range(2 if self.repetitions == 1 else 1):
            del self.commands[num_commands:]
            self.variables.offset = offset
            self._attempt([body], doubt, assigned)
        self.repetitions -= 1

    # ----------------------------------------------------------------------------- simple commands

    def _simple(self, node: Simple) -> bool | None:
        self._taint_redirections(node.redirections)
        words, self.doubt = node.words, ""
        if words:
            self.variables.offset = words[0].offset
        if words and _ELEMENT.match(words[0].start):
            self.variables.taint(node.source, is_several=True)
            return None
        assignments: list[Word] = []
        while words and ASSIGNMENT.match(words[0].start):
            assignments.append(words[0])
            words = words[1:]
        if not words:
            for word in assignments:
                self.variables.assign(word)
            # A command in $(...) gives the assignment its status.
            return None if re.search(r"\$\(|`", node.source) or node.redirections else True
        for word in assignments:
            self.variables.joined(word)
        literal = words[0].literal or ""
        if literal in _DECLARATIONS and literal not in self.functions:
            return self._declare(literal, words[1:], node.source)
        arguments = self.variables.fields(words)
        while arguments and all(segment.state is State.ABSENT for segment in arguments[0]):
            arguments = arguments[1:]
        if not arguments:
            return None
        name = known_text(arguments[0]) or ""
        if assignments and (name in self.functions or name in _BUILTINS):
            self.variables.taint(" ".join(word.source for word in assignments), is_several=True)
        return self._command(name, arguments, node)

    def _command(self, name: str, arguments: list[Text], node: Simple) -> bool | None:
        """Read a command by its name; "" if that is unknown."""
        words = [self.variables.argument(text) for text in arguments]
        if name in self.functions:
            words[0] = replace(words[0], is_function=True)
        self.commands.append(words)
        if name in self.functions:
            self._call(name)
            return None
        if not name:
            # A training script sets nothing; another command could be `export`.
            if not any(word.text.endswith(".py") for word in words):
                self.variables.forget()
            return None
        if name == "cat" and len(arguments) == 1 and node.target and node.document:
            self._write(node.target, node.document)
        if name in _BUILTINS:
            return _BUILTINS[name](self, arguments[1:], node)
        if name in ("[", "test"):
            return self._old_test(name, node.words)
        if name in _STARTERS or "/" in name or name.endswith(".py"):
            for text in arguments[1:]:
                self.read_child(text)
        return None

    def _write(self, target: Word, document: HereDocument) -> None:
        """Note the file that a here-document becomes; unknown if it is written with two texts."""
        text = self.variables.document(document)
        path, content = characters(self.variables.joined(target)), self.variables.argument(text)
        other = self.files.get(path, content)
        if other.text != content.text:
            reason = "which is written twice"
            content = Argument(content.text, content.offset, f"${path}", reason=reason)
        self.files[path] = content

    def read_child(self, text: Text) -> None:
        """Read an argument that is a script, as of `bash -c "torchrun ..."`."""
        written = "".join(segment.text for segment in text if segment.is_known)
        if ".py" in written and " --" in written:
            self._subshell(self._parsed([text]), is_opaque=True)

    def _parsed(self, texts: Iterable[Text]) -> Node:
        """Parse texts that a command evaluates, with blanks between them."""
        pieces = [
            (segment.text, segment.offset, segment.is_known)
            for text in texts
            for segment in (*text, Segment(" ", text[-1].offset if text else 0))
        ]
        return evaluated_text(pieces, self.variables.lines).parse()

    # ---------------------------------------------------------------------------------- assignment

    def _declare(self, builtin: str, words: tuple[Word, ...], source: str) -> bool | None:
        """Read `export`, `readonly`, `declare` or `typeset` of plain names and assignments."""
        options = [word for word in words if word.start.startswith(("-", "+"))]
        letters = {letter for word in options for letter in (word.literal or "-?")[1:]}
        for word in (word for word in words if word not in options):
            name = IDENTIFIER.match(word.start)
            is_assignment = ASSIGNMENT.match(word.start) is not None
            is_plain = name is not None and (is_assignment or word.literal == name[0])
            if not is_plain and not all(isinstance(part, Literal) for part in word.parts):
                self.variables.lose()  # The name itself comes from an expansion.
            if not is_plain or letters - {*"aprx"}:
                self.variables.taint(source, is_several=True)
                self.variables.restricted.update(IDENTIFIER.findall(word.source))
            elif is_assignment:
                self.variables.assign(word)
            if name and (builtin == "readonly" or "r" in letters):
                self.variables.restricted.add(name[0])
        if letters & {*"ng"} and builtin not in ("export", "readonly"):
            self.variables.lose()  # A reference to another name.
        return None if options else True

    # ------------------------------------------------------------------------------------ builtins

    def _eval(self, arguments: list[Text], node: Simple) -> None:
        self.read(self._parsed(arguments))
        if any(known_text(text) is None for text in arguments):
            self.variables.forget()

    def _source(self, arguments: list[Text], node: Simple) -> None:
        self.variables.forget()

    def _unset(self, arguments: list[Text], node: Simple) -> bool | None:
        names = [known_text(text) or "" for text in arguments]
        self.variables.taint(node.source)
        if not all(map(IDENTIFIER.fullmatch, names)):
            self.variables.lose()
            return None
        for name in names:
            self.variables.bind(name, Value(()))
        return True

    def _set(self, arguments: list[Text], node: Simple) -> bool:
        option = ""
        for text in map(known_text, arguments):
            is_name = option.endswith("o") and text in _OPTIONS
            if text is not None and (is_name or _OPTION.fullmatch(text)):
                option = text
            elif text == "--" or (text and text[0] not in "+-"):
                self.variables.bind("@", Unknown(True))
                break
            else:
                self.variables.lose()
        return True

    def _exit(self, arguments: list[Text], node: Simple) -> None:
        self.has_ended = True

    def _exec(self, arguments: list[Text], node: Simple) -> None:
        if arguments:
            self.commands[-1] = self.commands[-1][1:]
            for text in arguments:
                self.read_child(text)
            self.has_ended = True

    def _trap(self, arguments: list[Text], node: Simple) -> None:
        signals = [known_text(text) for text in arguments[1:]]
        if not all(signal and _ENDING_SIGNAL.fullmatch(signal) for signal in signals):
            self.variables.lose()  # The commands of the trap run between any two others.

    def _assigns(self, arguments: list[Text], node: Simple) -> None:
        """Read a builtin that assigns names among its arguments."""
        self.variables.taint(f"{node.source} REPLY MAPFILE OPTARG OPTIND", is_several=True)
        if any(known_text(text) is None for text in arguments):
            self.variables.lose()

    def _assigns_with_option(self, arguments: list[Text], node: Simple) -> None:
        """Read `printf -v` and `wait -p`."""
        if arguments and (known_text(arguments[0]) or "-").startswith("-"):
            self.variables.taint(node.source, is_several=True)

    def _succeed(self, arguments: list[Text], node: Simple) -> bool:
        return True

    def _fail(self, arguments: list[Text], node: Simple) -> bool:
        return False

    def _command_builtin(self, arguments: list[Text], node: Simple) -> None:
        """Read `command` and `builtin`, which print the place of a program or run it."""
        name = known_text(arguments[0]) if arguments else ""
        if name is None or name in _BUILTINS or name in _DECLARATIONS:
            self.variables.lose()

    def _changes_the_shell(self, arguments: list[Text], node: Simple) -> None:
        self.variables.lose()

    # --------------------------------------------------------------------------------------- tests

    def _old_test(self, name: str, words: tuple[Word, ...]) -> bool | None:
        """Decide `[ ... ]` or `test ...`."""
        texts = self.variables.fields(words, is_quiet=True)
        self.doubt = first_unknown(texts)
        if not texts or known_text(texts[0]) != name:
            return None
        values = [known_text(text, is_empty=True) for text in texts[1:]]
        if name == "[" and (not values or values.pop() != "]"):
            return None
        return decide_old_test(values)

    def _test(self, node: Test) -> bool | None:
        """Decide `[[ ... ]]`."""
        self.doubt = ""
        if any(_may_assign(part) for word in node.words for part in word.parts):
            self.variables.taint(node.source)  # bash may leave the word out.
            return None
        operands = [self.variables.operand(word) for word in node.words]
        self.doubt = first_unknown([self.variables.joined(word) for word in node.words])
        if evaluates_formula(operands):
            self.variables.lose()
        is_read = all(map(_has_no_operator, node.words))
        return decide_test(operands) if is_read else None


def _may_assign(part: Part) -> bool:
    """Return whether an expansion may assign, as ${N:=8} and $((N++)) do."""
    return isinstance(part, Variable | Arithmetic) and ASSIGNING.search(part.source) is not None


def _has_no_operator(word: Word) -> bool:
    """Return whether a word of `[[` has no parenthesis or operator beside other characters."""
    return word.literal in ("&&", "||") or not re.search("[()|&;<>]", word.plain)


_OPTION = re.compile(r"[-+](?:[abeEhmuvxCT]+o?|o)")
_OPTIONS = ("pipefail", "errexit", "nounset", "xtrace", "verbose", "allexport", "errtrace")
_ENDING_SIGNAL = re.compile(r"0|2|15|EXIT|(SIG)?(INT|TERM|HUP|QUIT)")
_BUILTINS: dict[str, Callable[[_Shell, list[Text], Simple], bool | None]] = {
    ":": _Shell._succeed,
    "true": _Shell._succeed,
    "false": _Shell._fail,
    "eval": _Shell._eval,
    "source": _Shell._source,
    ".": _Shell._source,
    "unset": _Shell._unset,
    "set": _Shell._set,
    "exit": _Shell._exit,
    "exec": _Shell._exec,
    "trap": _Shell._trap,
    **dict.fromkeys(("printf", "wait"), _Shell._assigns_with_option),
    **dict.fromkeys(("command", "builtin"), _Shell._command_builtin),
    **dict.fromkeys(
        ("let", "read", "readarray", "mapfile", "getopts", "local", "coproc"), _Shell._assigns
    ),
    **dict.fromkeys(_DECLARATIONS, _Shell._changes_the_shell),
    **dict.fromkeys(("shopt", "enable", "fc"), _Shell._changes_the_shell),
}
