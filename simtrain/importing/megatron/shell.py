"""Interpret the commands of a bash script, without running anything.

Evaluated are assignments, arrays, quotes, defaults (`${N:-8}`), integer formulas, `[`, `[[`,
`if`, `case`, `&&`, `||`, groups, subshells, pipelines, jobs in the background and functions, in a
shell without parameters whose folder has no files. All else makes the names that it could assign
unknown, and so every value that is derived from them.

The environment is what the user says of it (`Environment`), and empty otherwise. A sourced file can
set every variable, but defines no function that changes what the script itself sets later.
"""

from __future__ import annotations

import fnmatch
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import chain

from simtrain.errors import InputError
from simtrain.importing.megatron.shell_arithmetic import evaluate
from simtrain.importing.megatron.shell_syntax import (
    NAME,
    AndOr,
    Arithmetic,
    Block,
    Case,
    Foreign,
    Function,
    HereDocument,
    If,
    Lines,
    Literal,
    Loop,
    Node,
    Not,
    Opaque,
    Parser,
    Part,
    Simple,
    Subshells,
    Test,
    Variable,
    Word,
    evaluated_text,
)

MAX_CHARACTERS = 200_000
"""The longest script that is read; the longest of Megatron-LM has under 20,000."""
MAX_EXPANSIONS = 1_000_000
"""The most characters that all expansions of a script may have together."""
MAX_COMMANDS = 20_000
"""The most commands that a script may run."""
_MAX_CALLS = 150

_ASSIGNMENT = re.compile(rf"({NAME})(\+?)=")
_ELEMENT = re.compile(rf"{NAME}\[")
# An element of an array such as [0]*3+[1]*58, which sets no index, unlike [0]=3.
_NO_INDEX = re.compile(r"\[[^]\[]*\](?!\+?=)")
_IDENTIFIER = re.compile(NAME)
_ASSIGNING = re.compile(r"=|\+\+|--")
_GLOB = re.compile(r"[*?]|\[.*\]", re.DOTALL)
# Lists and layouts of Megatron-LM, such as [0]*3+[1]*58 and Et*3|t*4L, match the names of no files.
_NO_FILE = re.compile(r".*[()|]|(?=.*\])[][\d,+*]*\Z", re.DOTALL)
_INTEGER = re.compile(r"-?(0|[1-9]\d{0,17})", re.ASCII)
_BLANKS = re.compile(r"([ \t\n]+)")
# Set by bash itself or by a login, which a shell without environment does not show.
_SPECIAL = re.compile(
    r"BASH.*|COMP_.*|EPOCH.*|LC_.*|PS[0-4]|(?:CD|MAN|PYTHON|LD_LIBRARY_)?PATH|PIPESTATUS|RANDOM|SRANDOM|SECONDS|LINENO|E?UID|"
    r"PPID|PWD|OLDPWD|HOME|USER|LOGNAME|HOSTNAME|SHELL|SHELLOPTS|SHLVL|TERM|LANG|OPTIND|OPTERR|"
    r"GROUPS|FUNCNAME|DIRSTACK|HISTCMD|HOSTTYPE|MACHTYPE|OSTYPE|COLUMNS|LINES|COPROC.*|TMPDIR|_"
)
_DECLARATIONS = {"export", "readonly", "declare", "typeset", "local"}
# Programs and builtins that assign nothing. Other names can be functions of a sourced file.
_BATCH_JOB = re.compile("^#SBATCH ", re.MULTILINE)
_PROGRAM_NAMES = """
    accelerate apptainer awk basename bash cat chmod clear conda cp cut date deepspeed dirname
    docker env find free git grep gpustat head hostname ip jq kill ln ls lscpu mkdir mamba module
    mpirun mpiexec mv nohup numactl nsys nvidia-smi pip pip3 ps python python3 ray rm rsync
    scontrol sed seq sh singularity sleep sort srun stat sudo tail tee timeout torchrun touch tr
    ulimit uname uv wc wget which
    alias bg break cd continue dirs disown echo fg hash jobs logout popd printf pushd pwd times type
    ulimit umask unalias wait
"""
_PROGRAMS = frozenset(_PROGRAM_NAMES.split())


class State(Enum):
    """What is known of a piece of text; an absent one is unset in a shell without environment."""

    KNOWN = 0
    ABSENT = 1
    UNKNOWN = 2
    ARGUMENTS = 3
    """Unknown, and possibly several arguments."""
    PATTERN = 4
    """Known as long as no file has a name that matches the pattern: bash keeps it then."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of text with its position, or the name of an unknown value.

    `variable` is the variable that has the unknown value, if it has no other text.
    """

    text: str
    offset: int = field(compare=False)
    state: State = State.KNOWN
    variable: str = field(default="", compare=False)

    @property
    def is_known(self) -> bool:
        """Whether the characters are known."""
        return self.state in (State.KNOWN, State.PATTERN)


Text = tuple[Segment, ...]


@dataclass(frozen=True, slots=True)
class Value:
    """The value of a variable: one text, or the elements of an array."""

    elements: tuple[Text, ...]
    is_array: bool = False


@dataclass(frozen=True, slots=True)
class Unknown:
    """A value that is unknown, and whether it may be several arguments."""

    may_be_arguments: bool = False


_UNSET = Value(())
_Binding = Value | Unknown | Function


@dataclass(slots=True)
class _Scope:
    """The assignments of a branch, subshell or function, above those of its parent.

    Args:
        parent: the scope around it.
        values: the names that it assigns.
        is_opaque: whether all names of its parents are unknown.
        is_lost: whether nothing that is assigned later is known either, as if IFS had changed.
    """

    parent: _Scope | None = None
    values: dict[str, _Binding] = field(default_factory=dict)
    is_opaque: bool = False
    is_lost: bool = False

    def scopes(self) -> Iterator[_Scope]:
        """Yield the scope and those around it."""
        scope: _Scope | None = self
        while scope:
            yield scope
            scope = scope.parent

    def binding(self, name: str) -> _Binding | None:
        """Return what a name is bound to; None if nothing binds it."""
        for scope in self.scopes():
            if name in scope.values:
                return scope.values[name]
            if scope.is_opaque:
                return Unknown()
        return None


@dataclass(frozen=True, slots=True)
class Argument:
    """A word of a command after all expansions.

    Args:
        text: the characters; of an unknown value, its name, such as "$1".
        offset: position in the source.
        unknown: the first unknown value in it, or None.
        reason: why it is unknown, such as "which line 12 sets in a loop"; "" for names that the
            script does not define.
        may_be_arguments: whether it can be several arguments, or none.
        variable: the variable whose value would make it known, or "".
        is_pattern: whether bash would replace it by the names of files that match it.
    """

    text: str
    offset: int
    unknown: str | None = None
    may_be_arguments: bool = False
    reason: str = ""
    variable: str = ""
    is_pattern: bool = False


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
    return _interpreted(script, lines, environment).commands


def values_of(
    script: str, lines: Lines, environment: Environment = NOTHING
) -> list[list[Argument]]:
    """Return the words of each variable at the end of a script, or the commands in its text.

    Raises:
        InputError: as `commands_of`.
    """
    shell = _interpreted(script, lines, environment)
    shell.ended, commands = "", list[list[Argument]]()
    for name, binding in [*shell.scope.values.items()]:
        if isinstance(binding, Value) and name.isidentifier():
            shell.commands = []
            with suppress(InputError):  # The text is no script.
                for text in binding.elements:
                    shell.run_child(text)
            words = Parser(f"${{{name}[@]}}", lines).words()
            commands += shell.commands or [[shell.argument(text) for text in shell.fields(words)]]
    return [words for words in commands if words]


def variable_of(
    name: str, script: str, lines: Lines, environment: Environment = NOTHING
) -> Argument | None:
    """Return the text of a variable at the end of a script; None if it has none.

    Raises:
        InputError: as `commands_of`.
    """
    shell = _interpreted(script, lines, environment)
    texts = shell.fields(Parser(f'"${name}"', lines).words())
    words = [shell.argument(text) for text in texts]
    return words[0] if words and words[0].unknown is None and words[0].text else None


def _interpreted(script: str, lines: Lines, environment: Environment) -> _Shell:
    _check_length(script, lines)
    is_batch_job = _BATCH_JOB.search(script) is not None
    answers = {name: _value(text) for name, text in environment.answers.items()}
    shell = _Shell(lines, is_batch_job=is_batch_job, answers=answers)
    shell.scope.values |= {name: _value(text) for name, text in environment.variables.items()}
    shell.scope.values |= answers
    shell.run(Parser(script, lines).parse())
    return shell


def files_of(script: str, lines: Lines, environment: Environment = NOTHING) -> dict[str, Argument]:
    """Return the files that a script writes from its here-documents, by their path.

    An unknown value in a path stands in it by its name, such as ds.$SLURM_JOB_ID.json.

    Raises:
        InputError: as `commands_of`.
    """
    return _interpreted(script, lines, environment).files


def _value(text: str) -> Value:
    return Value(((Segment(text, 0),),))


def words_of(text: str, lines: Lines, environment: Environment = NOTHING) -> list[Argument]:
    """Return the words of a text of arguments, in which only quotes and $ have a meaning.

    Raises:
        InputError: a quote or bracket is not closed, or the text exceeds a limit.
    """
    _check_length(text, lines)
    answers = {name: _value(text) for name, text in environment.answers.items()}
    shell = _Shell(lines, has_patterns=False, answers=answers)
    shell.scope.values |= answers
    return [shell.argument(word) for word in shell.fields(Parser(text, lines).words())]


def _check_length(text: str, lines: Lines) -> None:
    if len(text) > MAX_CHARACTERS:
        message = f"the text has {len(text):,} characters, more than {MAX_CHARACTERS:,}"
        raise _too_large(message, lines, 0)


def _too_large(message: str, lines: Lines, offset: int) -> InputError:
    fix = "shorten it, or import the arguments alone as one text"
    return InputError.of("E879", message, lines.location(offset), fix)


@dataclass(slots=True)
class _Shell:
    """Interpreter of a script.

    Args:
        lines: the lines of the script, for errors.
        has_patterns: whether *, ? and brackets match the names of files.
        is_batch_job: whether Slurm starts the script, and defines variables.
        answers: values of variables wherever the script leaves them unknown.
        scope: the current variables. Parameters are "@"; a function is under its name with "()".
        commands: the words of the commands so far.
        loops: the number of loops around the current command; what they assign is unknown.
        ended: "exit" or "return" after the command of this name.
        readonly: names that cannot be assigned.
        attributed: names with attributes that change what they are assigned.
        doubt: the unknown variable of the last test, or "".
        reasons: why names are unknown; that of "" is the reason for all other names.
        files: the files that are written from here-documents.
    """

    lines: Lines
    has_patterns: bool = True
    is_batch_job: bool = False
    answers: Mapping[str, Value] = field(default_factory=dict)
    scope: _Scope = field(default_factory=lambda: _Scope(values={"@": Value((), True)}))
    commands: list[list[Argument]] = field(default_factory=list)
    loops: int = 0
    ended: str = ""
    readonly: set[str] = field(default_factory=set)
    attributed: set[str] = field(default_factory=set)
    doubt: str = ""
    reasons: dict[str, str] = field(default_factory=dict)
    files: dict[str, Argument] = field(default_factory=dict)
    # For each call: names that are local, and names that a branch with a `return` assigns.
    frames: list[tuple[set[str], set[str]]] = field(default_factory=list)
    offset: int = 0
    depth: int = 0
    num_commands: int = 0
    num_expanded: int = 0

    # ------------------------------------------------------------------------------------ commands

    def run(self, node: Node) -> bool | None:
        """Interpret a command; return whether it succeeds, or None if that is unknown."""
        self.depth += 1
        self.num_commands += 1
        if isinstance(node, If | Loop | Case | Opaque):
            self.offset = node.offset
        if self.depth > _MAX_CALLS or self.num_commands > MAX_COMMANDS:
            what = f"calls nested more than {_MAX_CALLS} deep"
            if self.depth <= _MAX_CALLS:
                what = f"more than {MAX_COMMANDS:,} commands"
            raise _too_large(f"the script runs {what}", self.lines, self.offset)
        status = self._run(node)
        self.depth -= 1
        # In a loop, what was true the first time may be false the next.
        return None if self.loops else status

    def _run(self, node: Node) -> bool | None:
        match node:
            case Simple():
                return self._simple(node)
            case Test():
                return self._test(node.words)
            case Block():
                self._taint_redirections(node.redirections)
                status: bool | None = True
                for command in node.commands:
                    status = self.run(command)
                    if self.ended:
                        break
                return status
            case AndOr():
                return self._and_or(node)
            case Not():
                status = self.run(node.command)
                return None if status is None else not status
            case Subshells():
                for command in node.commands:
                    self._subshell(command)
                return None
            case If():
                return self._if(node)
            case Loop():
                self._loop(node)
                return None
            case Case():
                return self._case(node)
            case Function():
                self._bind(f"{node.name}()", node)
                return True
            case Opaque():
                for name in _IDENTIFIER.findall(node.source):
                    self._integer(name)
                if _ASSIGNING.search(node.source):
                    self._taint(node.source)
                return None

    def _and_or(self, node: AndOr) -> bool | None:
        status = self.run(node.first)
        for joint, command in node.rest:
            if self.ended:
                break
            if status is None:
                self._branch([command, None])
            elif status == (joint == "&&"):
                status = self.run(command)
        return status

    def _subshell(self, node: Node, is_opaque: bool = False) -> None:
        scope, ended = self.scope, self.ended
        self.scope = _Scope(scope, is_opaque=is_opaque, is_lost=scope.is_lost)
        self.run(node)
        self.scope, self.ended = scope, ended

    def _if(self, node: If) -> bool | None:
        for number, (condition, body) in enumerate(node.branches):
            status = self.run(condition)
            if self.ended:
                return None
            if status is None:
                rest = node.branches[number + 1 :]
                self._branch([body, If(rest, node.otherwise) if rest else node.otherwise])
                return None
            if status:
                return self.run(body)
        return self.run(node.otherwise) if node.otherwise else True

    def _case(self, node: Case) -> bool | None:
        joined = self._joined(node.word)
        text, self.doubt = known_text(joined, is_empty=True), _doubt([joined])
        for number, (patterns, body) in enumerate(node.branches):
            matches = [
                None if text is None else self._matches(text, pattern) for pattern in patterns
            ]
            if None in matches or node.falls_through or self.loops:
                bodies = [body for _, body in node.branches[number:]]
                for _ in bodies if node.falls_through else [None]:
                    self._branch([*bodies, None])
                return None
            if True in matches:
                return self.run(body)
        return True

    def _loop(self, node: Loop) -> None:
        if node.condition and not self.loops:
            scope, num_commands = self.scope, len(self.commands)
            self.scope = _Scope(scope, is_lost=scope.is_lost)
            status = self.run(node.condition)
            attempt, self.scope = self.scope, scope
            if status is node.is_until and not self.ended:
                self._merge([attempt])
                return
            self.ended = ""
            del self.commands[num_commands:]
        if node.words is not None and not self.fields(node.words, is_quiet=True):
            return
        self.loops += 1
        # What an iteration assigns is unknown in the next.
        for number in range(2 if self.loops == 1 else 1):
            num_commands, self.offset = len(self.commands), node.offset
            self._taint(node.variable, may_be_arguments=True)
            if node.condition:
                self.run(node.condition)
            self._branch([node.body, None])
            self.ended = ""
            if self.loops == 1 and number == 0:
                del self.commands[num_commands:]
        self.loops -= 1

    def _branch(self, nodes: list[Node | None]) -> None:
        """Interpret branches of which one runs, and keep what all of them agree on."""
        scope, scopes, endings = self.scope, [], []
        condition = f"on {self.doubt}" if self.doubt else "that is not known"
        offset, self.doubt = self.offset, ""
        for node in nodes:
            self.scope = _Scope(scope, is_lost=scope.is_lost)
            if node:
                self.run(node)
            if not self.ended:
                scopes.append(self.scope)
                continue
            endings.append(self.ended)
            if self.ended == "return" and self.frames:
                self.frames[-1][1].update(self.scope.values, ["@"])
                scope.is_lost |= self.scope.is_lost or self.scope.is_opaque
            self.ended = ""
        self.scope = scope
        if scopes:
            self._merge(scopes, reason=f"sets under a condition {condition}", offset=offset)
        else:
            self.ended = "return" if "return" in endings else "exit"

    def _merge(
        self,
        scopes: list[_Scope],
        local: Iterable[str] = (),
        reason: str = "",
        offset: int | None = None,
    ) -> None:
        """Assign to the current scope what the scopes of branches agree on.

        Args:
            scopes: the scopes.
            local: names that are left out.
            reason: why a name is unknown if they disagree.
            offset: position of the command that has the branches.
        """
        names = {name for scope in scopes for name in scope.values}.difference(local)
        bindings = {name: [scope.binding(name) for scope in scopes] for name in sorted(names)}
        if any(scope.is_opaque for scope in scopes):
            self.scope.values.clear()
            self.scope.is_opaque = True
        self.scope.is_lost |= any(scope.is_lost for scope in scopes)
        for name, (first, *others) in bindings.items():
            agrees = first is not None and all(other == first for other in others)
            unknown = Unknown(any(map(_may_be_arguments, (first, *others))))
            self.scope.values[name] = first if agrees and first else unknown
            if not agrees and not any(isinstance(value, Unknown) for value in (first, *others)):
                self._explain(name, reason, offset)

    def _simple(self, node: Simple) -> bool | None:
        self._taint_redirections(node.redirections)
        words, self.doubt = node.words, ""
        if words:
            self.offset = words[0].offset
        if words and _ELEMENT.match(words[0].start):
            self._taint(node.source, may_be_arguments=True)
            return None
        prefix: list[str] = []
        while words and (assignment := _ASSIGNMENT.match(words[0].start)):
            prefix.append(assignment[1])
            words = words[1:]
        assignments = node.words[: len(prefix)]
        if not words:
            for word in assignments:
                self._assign(word)
            # A command in $(...) gives the assignment its status.
            return None if re.search(r"\$\(|`", node.source) or node.redirections else True
        for word in assignments:
            self._joined(word)
        literal = words[0].literal or ""
        if literal in _DECLARATIONS and not self._function(literal):
            return self._declare(literal, words[1:], node.source)
        arguments = self.fields(words)
        while arguments and all(segment.state is State.ABSENT for segment in arguments[0]):
            arguments = arguments[1:]
        if not arguments:
            return None
        self.commands.append([self.argument(text) for text in arguments])
        name = known_text(arguments[0])
        if name is None:
            self._unknown_command()
            return None
        if name == "cat" and len(arguments) == 1 and node.target and node.document:
            self._write(node.target, node.document)
        function = self._function(name)
        if prefix and (function or name in _BUILTINS):
            self._taint(" ".join(prefix), may_be_arguments=True)
        if function:
            return self._call(function, arguments[1:])
        return self._command(name, arguments[1:], node)

    def _command(self, name: str, arguments: list[Text], node: Simple) -> bool | None:
        """Interpret a command that is no function of the script."""
        if name in ("command", "builtin"):
            inner = known_text(arguments[0]) if arguments else ""
            if inner and inner.startswith("-"):
                return None
            if inner:
                return self._command(inner, arguments[1:], node)
            self._lose()
            return None
        if name in _BUILTINS:
            return _BUILTINS[name](self, arguments, node)
        if name in ("[", "test"):
            return self._old_test(name, node.words)
        if name in ("printf", "wait") and _known_start(arguments).startswith("-"):
            self._taint(node.source, may_be_arguments=True)
        is_program = name in _PROGRAMS or "/" in name or name.endswith(".py")
        if is_program and name not in ("echo", "printf"):
            for text in arguments:
                self.run_child(text)
        return None

    def _write(self, target: Word, document: HereDocument) -> None:
        """Note the file that a here-document becomes; unknown if it is written with two texts."""
        body = document.body
        if document.strips_tabs:
            body = re.sub(r"^\t+", "", body, flags=re.MULTILINE)
        text: Text = (Segment(body, document.offset),)
        if not document.is_raw:
            text = self._text(Parser(body, self.lines, ((0, document.offset),)).document())
        path, content = _written(self._joined(target)), self.argument(text)
        other = self.files.get(path, content)
        if other.text != content.text:
            reason = "which is written twice"
            content = Argument(content.text, content.offset, f"${path}", reason=reason)
        self.files[path] = content

    def _unknown_command(self) -> None:
        """Make all names unknown, unless the command is what another host or a program prints."""
        if self.commands[-1][0].text.startswith("$(ssh "):
            return
        if not any(argument.text.endswith(".py") for argument in self.commands[-1]):
            self._forget()

    def run_child(self, text: Text) -> None:
        """Interpret an argument that is a script, as of `bash -c "torchrun ..."`."""
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
        return evaluated_text(pieces, self.lines).parse()

    def _call(self, function: Function, arguments: list[Text]) -> bool | None:
        scope = self.scope
        self.scope = _Scope(scope, {"@": _parameters(arguments)}, is_lost=scope.is_lost)
        self.frames.append(({"@"}, set()))
        status = self.run(function.body)
        local, returned = self.frames.pop()
        inner, self.scope = self.scope, scope
        has_returned = self.ended == "return"
        if has_returned:
            self.ended = ""
        self._merge([inner], local)
        if returned:
            self._taint_names({*inner.values, *returned} - local, True)
        return None if has_returned or returned else status

    def _function(self, name: str) -> Function | None:
        """Return a function of the script; one that may be defined makes all names unknown."""
        for scope in self.scope.scopes():
            binding = scope.values.get(f"{name}()")
            if isinstance(binding, Function):
                return binding
            if binding:
                self._lose()
                return None
        return None

    # ---------------------------------------------------------------------------------- assignment

    def _assign(self, word: Word) -> None:
        """Interpret a word such as N=8, N+=8 or N=(8 9)."""
        name, appends = _ASSIGNMENT.findall(word.start)[0]
        old = self.scope.binding(name)
        if word.elements is not None:
            elements = tuple(self.fields(word.elements))
            has_index = any(
                element.start.startswith("[") and not _NO_INDEX.match(element.start)
                for element in word.elements
            )
            if has_index or (appends and isinstance(old, Unknown)):
                self._bind(name, Unknown(True))
            elif appends and isinstance(old, Value):
                self._bind(name, Value((*old.elements, *elements), True))
            else:
                self._bind(name, Value(elements, True))
            return
        text = self._joined(word, skip=len(f"{name}{appends}="))
        if isinstance(old, Value) and old.is_array:
            self._bind(name, Unknown(True))  # It replaces, or extends, the first element alone.
        elif appends and isinstance(old, Unknown):
            self._bind(name, Unknown(old.may_be_arguments or _has_flags(text)))
        elif appends and isinstance(old, Value):
            self._bind(name, Value(((*chain(*old.elements), *text),)))
        else:
            self._bind(name, Value((text,)))

    def _bind(self, name: str, binding: _Binding) -> None:
        if name in ("IFS", "POSIXLY_CORRECT") or name in self.readonly:
            self._lose()
        if self.loops or name in self.attributed or _SPECIAL.fullmatch(name):
            binding = Unknown(_may_be_arguments(binding))
        self.scope.values[name] = binding
        self.reasons.pop(name, None)
        if isinstance(binding, Unknown):
            self._explain(
                name, "sets in a loop" if self.loops else "sets in a way that is not read"
            )

    def _explain(self, name: str, text: str, offset: int | None = None) -> None:
        """Note why a name is unknown from here on.

        Args:
            name: the name; "" for all others.
            text: what its line does.
            offset: position of the line; that of the current command by default.
        """
        line = self.lines.location(self.offset if offset is None else offset).line
        self.reasons[name] = f"which line {line} {text}"

    def argument(self, text: Text) -> Argument:
        """Return a text as a word of a command."""
        unknown = next((segment for segment in text if not segment.is_known), None)
        offset = text[0].offset if text else 0
        is_several = any(segment.state is State.ARGUMENTS for segment in text)
        if unknown is None:
            return Argument(_written(text), offset, is_pattern=_is_pattern(text))
        name = unknown.text.removeprefix("$").removesuffix("[@]")
        is_opaque = self.scope.is_lost or any(scope.is_opaque for scope in self.scope.scopes())
        others = self.reasons.get("", "") if is_opaque and name.isidentifier() else ""
        reason = self.reasons.get(name, others)
        written = _written(text)
        return Argument(written, offset, unknown.text, is_several, reason, unknown.variable)

    def _taint(self, text: str, may_be_arguments: bool = False) -> None:
        """Make every name in a text unknown."""
        self._taint_names(_IDENTIFIER.findall(text), may_be_arguments)

    def _taint_names(self, names: Iterable[str], may_be_arguments: bool) -> None:
        for name in sorted({*names}):
            self._bind(name, Unknown(may_be_arguments))

    def _taint_redirections(self, texts: Iterable[str]) -> None:
        for text in texts:
            if _ASSIGNING.search(text) or text.startswith("{"):
                self._taint(text)

    def _forget(self) -> None:
        """Make all names unknown that are assigned so far."""
        functions = {
            name: binding for name, binding in self.scope.values.items() if name.endswith("()")
        }
        self.scope.values.clear()
        self.scope.values.update(functions)
        self.scope.is_opaque = True
        self.reasons.clear()
        self._explain("", "can change")

    def _lose(self) -> None:
        """Make all names unknown, including those that are assigned later."""
        self.scope.is_lost = True
        self._explain("", "can change")

    def _declare(self, builtin: str, words: tuple[Word, ...], source: str) -> bool | None:
        options = [word for word in words if word.start.startswith(("-", "+"))]
        letters = {letter for word in options for letter in (word.literal or "-?")[1:]}
        if builtin == "local" and not self.frames:
            self._taint(source)  # An error: bash assigns nothing.
            return None
        declares_local = self.frames and builtin not in ("export", "readonly")
        for word in words:
            name = _IDENTIFIER.match(word.start)
            is_assignment = _ASSIGNMENT.match(word.start) is not None
            if word in options:
                continue
            if not name or not (is_assignment or word.literal == name[0]):
                self._taint(source, may_be_arguments=True)
                if not all(isinstance(part, Literal) for part in word.parts):
                    self._lose()  # The name itself comes from an expansion.
                continue
            if declares_local:
                self.frames[-1][0].add(name[0])
            if letters - {*"aprx"}:
                self.attributed.add(name[0])
                self._bind(name[0], Unknown(True))
            if is_assignment:
                self._assign(word)
            elif declares_local:
                self._bind(name[0], _UNSET)
            if builtin == "readonly" or "r" in letters:
                self.readonly.add(name[0])
        if letters & {*"ng"} and builtin not in ("export", "readonly"):
            self._lose()  # A reference to another name, or to a name outside of the function.
        return None if options else True

    # ------------------------------------------------------------------------------------ builtins

    def _eval(self, arguments: list[Text], node: Simple) -> bool | None:
        self.run(self._parsed(arguments))
        if any(known_text(text) is None for text in arguments):
            self._forget()
        return None

    def _source(self, arguments: list[Text], node: Simple) -> None:
        self._forget()

    def _unset(self, arguments: list[Text], node: Simple) -> bool | None:
        names = [known_text(text) or "" for text in arguments]
        if all(_IDENTIFIER.fullmatch(name) for name in names):
            for name in names:
                self._bind(name, _UNSET)
            return True
        self._taint(node.source)
        if "" in names:
            self._lose()
        for name in names:
            if self._function(name):
                self._lose()
        return None

    def _set(self, arguments: list[Text], node: Simple) -> bool | None:
        option = ""
        for number, text in enumerate(map(known_text, arguments)):
            is_name = option.endswith("o") and text in _OPTIONS
            if text is not None and (is_name or _OPTION.fullmatch(text)):
                option = text
            elif text == "--" or (text and text[0] not in "+-"):
                first = number + (text == "--")
                self._bind("@", _parameters(arguments[first:]))
                return True
            else:
                self._lose()
        return True

    def _shift(self, arguments: list[Text], node: Simple) -> bool | None:
        count = known_text(arguments[0]) if arguments else "1"
        parameters = self.scope.binding("@")
        if isinstance(parameters, Value) and count and count.isdecimal() and len(count) < 5:
            if int(count) <= len(parameters.elements):
                self._bind("@", Value(parameters.elements[int(count) :], True))
            return None
        self._bind("@", Unknown(True))
        return None

    def _end(self, arguments: list[Text], node: Simple) -> None:
        if node.words[0].literal == "exit" or self.frames:
            self.ended = node.words[0].literal or "exit"

    def _exec(self, arguments: list[Text], node: Simple) -> bool | None:
        if arguments:
            self.commands[-1] = self.commands[-1][1:]
            for text in arguments:
                self.run_child(text)
            self.ended = "exit"
        return None

    def _trap(self, arguments: list[Text], node: Simple) -> bool | None:
        signals = [known_text(text) for text in arguments[1:]]
        if not all(signal and _ENDING_SIGNAL.fullmatch(signal) for signal in signals):
            self._lose()  # The commands of the trap run between any two others.
        return None

    def _reads(self, arguments: list[Text], node: Simple) -> None:
        """Interpret a builtin that assigns names among its arguments."""
        self._taint(f"{node.source} REPLY MAPFILE OPTARG OPTIND", may_be_arguments=True)
        if any(known_text(text) is None for text in arguments):
            self._lose()

    def _do_nothing(self, arguments: list[Text], node: Simple) -> bool:
        return True

    def _false(self, arguments: list[Text], node: Simple) -> bool:
        return False

    def _changes_the_shell(self, arguments: list[Text], node: Simple) -> None:
        self._lose()

    # --------------------------------------------------------------------------------------- tests

    def _old_test(self, name: str, words: tuple[Word, ...]) -> bool | None:
        """Evaluate `[ ... ]` or `test ...`."""
        texts = self.fields(words, is_quiet=True)
        while texts and known_text(texts[0]) != name:  # `builtin [ ... ]`
            texts = texts[1:]
        values = [known_text(text, is_empty=True) for text in texts[1:]]
        self.doubt = _doubt(texts)
        if name == "[" and (not values or values.pop() != "]"):
            return None
        texts_known = [value for value in values if value is not None]
        return _test_of(texts_known) if len(texts_known) == len(values) else None

    def _test(self, words: tuple[Word, ...]) -> bool | None:
        """Evaluate a test of `[[ ... ]]`."""
        texts = [self._joined(word) for word in words]
        operands = [known_text(text, is_empty=True) for text in texts]
        self.doubt = _doubt(texts)
        if len(words) == 1:
            return None if operands[0] is None else bool(operands[0])
        if len(words) == 2:
            test, text = words[0].literal, operands[1]
            is_supported = test in ("-z", "-n") and text is not None
            return bool(text) is (test == "-n") if is_supported else None
        left, test, right = operands[0], words[1].literal, operands[2]
        if test in ("=", "==", "!=") and left is not None and len(words) == 3:
            matches = self._matches(left, words[2])
            return None if matches is None else matches is (test != "!=")
        if test not in _COMPARISONS or left is None or right is None:
            return None
        if not (_INTEGER.fullmatch(left) and _INTEGER.fullmatch(right)):
            self._lose()  # Operands are formulas, which can assign.
            return None
        return _COMPARISONS[test](int(left), int(right))

    def _matches(self, text: str, pattern: Word) -> bool | None:
        """Return whether a text matches a pattern; None for patterns that are not supported."""
        glob = ""
        for part in pattern.parts:
            joined = known_text(self._text([part]), is_empty=True)
            if joined is None:
                return None
            is_plain = part.quoted or not re.search(r"[*?\[(\\~]", joined)
            if not is_plain and not (isinstance(part, Literal) and set(joined).isdisjoint("[(\\~")):
                return None
            glob += re.sub(r"([*?[])", r"[\1]", joined) if is_plain else joined
        return fnmatch.fnmatchcase(text, glob)

    # ---------------------------------------------------------------------------------- expansions

    def fields(self, words: Iterable[Word], is_quiet: bool = False) -> list[Text]:
        """Expand words to texts: unquoted values are split, arrays give their elements.

        Args:
            words: the words.
            is_quiet: whether names without a value expand to nothing, in place of an unknown text.
        """
        return [text for word in words for text in self._fields_of(word, is_quiet)]

    def _fields_of(self, word: Word, is_quiet: bool) -> list[Text]:
        fields = _Fields(True, is_quiet, self.has_patterns)
        self._expand(word.parts, fields, quoted=False)
        literals = "".join(
            part.text for part in word.parts if isinstance(part, Literal) and not part.quoted
        )
        has_braces = "{" in literals and "}" in literals.partition("{")[2] and literals != "{}"
        if has_braces or _has_tilde(word):
            return [(Segment(word.source, word.offset, State.ARGUMENTS),)]
        return fields.finish()

    def _joined(self, word: Word, skip: int = 0) -> Text:
        """Expand a word to one text, as in an assignment or a test.

        Args:
            word: the word.
            skip: the number of characters to leave out at its start.
        """
        if _has_tilde(word):
            return (Segment(word.source[skip:], word.offset, State.UNKNOWN),)
        first, *rest = word.parts or (Literal("", word.offset, True),)
        if skip and isinstance(first, Literal):
            first = Literal(first.text[skip:], first.offset + skip, first.quoted)
        return self._text([first, *rest])

    def _text(self, parts: Iterable[Part]) -> Text:
        fields = _Fields(False, False, False)
        self._expand(parts, fields, quoted=True)
        return tuple(segment for text in fields.finish() for segment in text)

    def _expand(
        self, parts: Iterable[Part], fields: _Fields, quoted: bool, in_operand: bool = False
    ) -> None:
        for part in parts:
            is_quoted = quoted or part.quoted
            match part:
                case Literal():
                    segment = Segment(part.text, part.offset)
                    if in_operand and not part.quoted and part.text.startswith("~"):
                        segment = Segment(part.text, part.offset, State.UNKNOWN)
                    fields.add(segment, is_quoted, splits=in_operand)
                    self._count(part.text)
                case Variable():
                    self._expand_variable(part, fields, is_quoted)
                case Arithmetic():
                    fields.add(self._arithmetic(part), is_quoted)
                case Foreign():
                    fields.add(Segment(part.source, part.offset, State.UNKNOWN), is_quoted)

    def _expand_variable(self, part: Variable, fields: _Fields, quoted: bool) -> None:
        binding = self._value_of(part.name)
        is_all = part.index in ("@", "*") or part.name in ("@", "*")
        is_several = is_all or (not quoted and _may_be_arguments(binding))
        state = State.ARGUMENTS if is_several else State.UNKNOWN
        variable = "" if is_all or not part.name.isidentifier() else part.name
        unknown = Segment(f"${part.name}" + "[@]" * is_all, part.offset, state, variable)
        if part.source in ("$#", "${#}"):
            return fields.add(self._num_parameters(part), quoted)
        elements = self._elements_of(part, binding)
        is_set = self._is_set(part, elements) if elements is not None else None
        if elements is None or is_set is None:
            # An operand that may be expanded may assign.
            if part.operator != "" and _ASSIGNING.search(part.source.partition(part.name)[2]):
                self._taint(part.source)
            return fields.add(unknown, quoted)
        operator = part.operator[-1:] if part.operator else ""
        if operator == "+" and not is_set:
            return fields.add(Segment("", part.offset), quoted)
        if operator == "=" and not is_set:
            elements = [self._text(part.operand)]
            self._bind(part.name, Value((elements[0],)))
        elif operator and operator != "?" and is_set is (operator == "+"):
            return self._expand(part.operand, fields, quoted, in_operand=True)
        if not elements and binding is None:
            return fields.add(replace(unknown, state=State.ABSENT), quoted)
        for segment in chain(*elements):
            self._count(segment.text)
        match elements:
            case [(Segment(state=State.UNKNOWN, variable="") as segment,)] if variable:
                elements = [(replace(segment, variable=variable),)]
        is_apart = "@" in (part.index, part.name)
        return fields.add_elements(elements, quoted, is_apart, is_all, part.offset)

    def _is_set(self, part: Variable, elements: list[Text]) -> bool | None:
        """Return whether a variable is set (and not empty, if its operator has a colon)."""
        if not part.operator:
            return bool(elements)
        if len(elements) > 1 and not all(map(known_text, elements)):
            return None
        if part.operator.startswith(":"):
            empty = {_emptiness(text) for text in elements} or {True}
            return None if None in empty else empty == {False}
        return bool(elements)

    def _value_of(self, name: str) -> _Binding | None:
        """Return what a name is bound to; what the user says of it if that is unknown."""
        binding = self._binding_of(name)
        if self.scope.is_lost:
            binding = Unknown(_may_be_arguments(binding))
        is_known = isinstance(binding, Value) and all(
            known_text(text, is_empty=True) is not None for text in binding.elements
        )
        return binding if is_known else self.answers.get(name, binding)

    def _binding_of(self, name: str) -> _Binding | None:
        parameters = self.scope.binding("@")
        if name in ("@", "*"):
            return parameters
        if name.isdecimal() and name != "0" and isinstance(parameters, Value):
            elements = parameters.elements[int(name) - 1 : int(name)]
            return Value(elements) if elements else None
        if not name.isidentifier():
            return Unknown(name != "0")
        binding = self.scope.binding(name)
        is_set_elsewhere = self.is_batch_job and name.startswith("SLURM_")
        if binding is None and (is_set_elsewhere or _SPECIAL.fullmatch(name)):
            return Unknown()
        return binding

    def _elements_of(self, part: Variable, binding: _Binding | None) -> list[Text] | None:
        """Return the elements that an expansion selects; None if they are unknown."""
        if part.operator is None or isinstance(binding, Unknown | Function):
            return None
        elements = [*binding.elements] if binding else []
        if part.index in ("@", "*") or part.name in ("@", "*"):
            return elements
        index = int(part.index or 0)
        # An unknown element can be none or several.
        is_array = binding is not None and binding.is_array
        before = elements[: index + 1]
        if is_array and any(known_text(text) is None or _is_pattern(text) for text in before):
            return None
        return elements[index : index + 1]

    def _num_parameters(self, part: Variable) -> Segment:
        parameters = self.scope.binding("@")
        is_known = isinstance(parameters, Value) and not any(map(_is_pattern, parameters.elements))
        if isinstance(parameters, Value) and is_known and not self.scope.is_lost:
            return Segment(str(len(parameters.elements)), part.offset)
        return Segment("$#", part.offset, State.UNKNOWN)

    def _arithmetic(self, part: Arithmetic) -> Segment:
        text = self._text(part.parts)
        formula = known_text(text)
        number = None
        if formula is not None:
            number = evaluate(formula, self._integer)
        if number is None:
            names = _IDENTIFIER.findall(_written(text))
            are_known = all([self._integer(name) is not None for name in names])
            if _ASSIGNING.search(_written(text)):
                self._taint_names(names, False)
            elif formula is not None and are_known:
                self._lose()  # After an error, bash leaves out the rest of the command around it.
            return Segment(part.source, part.offset, State.UNKNOWN)
        return Segment(str(number), part.offset)

    def _integer(self, name: str) -> int | None:
        """Return the value of a variable in a formula."""
        binding = self._value_of(name)
        if not isinstance(binding, Value):
            return None
        text = known_text(binding.elements[0]) if binding.elements else None
        if text is None or not _INTEGER.fullmatch(text):
            if text:
                self._lose()  # It is a formula itself, which can assign.
            return None
        return int(text)

    def _count(self, text: str) -> None:
        self.num_expanded += len(text) + 4  # An empty text also takes memory.
        if self.num_expanded > MAX_EXPANSIONS:
            message = f"the script expands to more than {MAX_EXPANSIONS:,} characters"
            raise _too_large(message, self.lines, self.offset)


@dataclass(slots=True)
class _Fields:
    """The texts that a word expands to.

    Args:
        splits: whether unquoted values are split at blanks.
        is_quiet: whether absent values are left out.
        has_patterns: whether *, ? and brackets match the names of files.
    """

    splits: bool
    is_quiet: bool
    has_patterns: bool
    texts: list[Text] = field(default_factory=list)
    current: list[Segment] | None = None
    unquoted: str = ""

    def add(self, segment: Segment, quoted: bool, splits: bool = True) -> None:
        """Add a segment to the current text; split it if it is not quoted."""
        if self.is_quiet and segment.state is State.ABSENT:
            segment = Segment("", segment.offset)
        if quoted or not segment.is_known:
            if quoted or segment.text:
                self.current = [] if self.current is None else self.current
                self.current += [segment] * bool(segment.text)
            return
        start = segment.offset
        for piece in _BLANKS.split(segment.text) if splits else [segment.text]:
            if splits and piece[:1] in (" ", "\t", "\n"):
                self.end()
            elif piece:
                self.current = [] if self.current is None else self.current
                self.current.append(replace(segment, text=piece, offset=start))
                self.unquoted += piece
            start += len(piece)

    def add_elements(
        self, elements: list[Text], quoted: bool, is_apart: bool, is_all: bool, offset: int
    ) -> None:
        """Add the elements of an array, or the one text of a variable."""
        if quoted and not (is_all and is_apart and not elements):
            self.current = [] if self.current is None else self.current
        for number, text in enumerate(elements):
            if number and self.splits and (is_apart or not quoted):
                self.end()
                self.current = [] if quoted else None
            elif number:
                self.add(Segment(" ", offset), True)
            for segment in text:
                self.add(segment, quoted)

    def end(self) -> None:
        """End the current text."""
        if self.current is not None:
            text = tuple(self.current)
            is_glob = self.has_patterns and _GLOB.search(self.unquoted)
            if is_glob and not _NO_FILE.match(_written(text)):
                are_known = all(segment.is_known for segment in text)
                state = State.PATTERN if are_known else State.ARGUMENTS
                text = (Segment(_written(text), text[0].offset, state),)
            self.texts.append(text)
        self.current, self.unquoted = None, ""

    def finish(self) -> list[Text]:
        """End the last text and return all."""
        self.end()
        return self.texts


def known_text(text: Text, is_empty: bool = False) -> str | None:
    """Return the characters of a text, or None if a part is unknown.

    Args:
        text: the text.
        is_empty: whether values that are absent count as empty, in place of unknown.
    """
    if is_empty:
        text = tuple(segment for segment in text if segment.state is not State.ABSENT)
    return None if any(not segment.is_known for segment in text) else _written(text)


def _is_pattern(text: Text) -> bool:
    return any(segment.state is State.PATTERN for segment in text)


def _written(text: Text) -> str:
    return "".join(segment.text for segment in text)


def _doubt(texts: Iterable[Text]) -> str:
    """Return the first unknown variable of a test, such as $HOSTNAME, or ""."""
    segments = (segment for segment in chain(*texts) if segment.variable and not segment.is_known)
    return next((f"${segment.variable}" for segment in segments), "")


def _emptiness(text: Text) -> bool | None:
    """Return whether a text is empty in a shell without environment; None if unknown."""
    if any(segment.text for segment in text if segment.is_known):
        return False
    states = {segment.state for segment in text if segment.text}
    return None if states - {State.KNOWN, State.PATTERN, State.ABSENT} else True


def _parameters(arguments: list[Text]) -> _Binding:
    """Return the value of "@"; an unknown text can be several parameters."""
    are_known = all(known_text(text) is not None for text in arguments)
    return Value(tuple(arguments), True) if are_known else Unknown(True)


def _has_flags(text: Text) -> bool:
    written = f" {_written(text)}"
    return " -" in written or any(segment.state is State.ARGUMENTS for segment in text)


def _may_be_arguments(binding: _Binding | None) -> bool:
    match binding:
        case Unknown(may_be_arguments):
            return may_be_arguments
        case Value(elements, is_array):
            return is_array or any(map(_has_flags, elements))
    return False


def _has_tilde(word: Word) -> bool:
    """Whether a part of the word is a home folder."""
    literals = [part.text for part in word.parts if isinstance(part, Literal) and not part.quoted]
    return word.start.startswith("~") or any(re.search("[=:]~", text) for text in literals)


def _known_start(arguments: list[Text]) -> str:
    return (known_text(arguments[0]) or "-") if arguments else ""


_OPTION = re.compile(r"[-+](?:[abeEhmuvxCT]+o?|o)")
_OPTIONS = ("pipefail", "errexit", "nounset", "xtrace", "verbose", "allexport", "errtrace")
_ENDING_SIGNAL = re.compile(r"0|2|15|EXIT|(SIG)?(INT|TERM|HUP|QUIT)")
_BUILTINS: dict[str, Callable[[_Shell, list[Text], Simple], bool | None]] = {
    ":": _Shell._do_nothing,
    "true": _Shell._do_nothing,
    "false": _Shell._false,
    "eval": _Shell._eval,
    "source": _Shell._source,
    ".": _Shell._source,
    "unset": _Shell._unset,
    "set": _Shell._set,
    "shift": _Shell._shift,
    "exit": _Shell._end,
    "return": _Shell._end,
    "exec": _Shell._exec,
    "trap": _Shell._trap,
    **dict.fromkeys(("let", "read", "readarray", "mapfile", "getopts"), _Shell._reads),
    **dict.fromkeys(_DECLARATIONS, _Shell._changes_the_shell),
    **dict.fromkeys(("shopt", "enable", "fc"), _Shell._changes_the_shell),
}

_COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    "-eq": operator.eq,
    "-ne": operator.ne,
    "-lt": operator.lt,
    "-le": operator.le,
    "-gt": operator.gt,
    "-ge": operator.ge,
}


def _test_of(values: list[str]) -> bool | None:
    """Evaluate the arguments of `[`; None for tests of files and others that are not supported."""
    match values:
        case []:
            return False
        case [text]:
            return bool(text)
        case ["-z" | "-n" as test, text]:
            return bool(text) is (test == "-n")
        case [left, "=" | "==" | "!=" as test, right]:
            return (left == right) is (test != "!=")
        case [left, test, right] if test in _COMPARISONS:
            if _INTEGER.fullmatch(left) and _INTEGER.fullmatch(right):
                return _COMPARISONS[test](int(left), int(right))
            return None
        case ["!", *rest] if len(values) <= 4:
            result = _test_of(rest)
            return None if result is None else not result
    if len(values) < 5 or {"!", "(", ")"} & {*values}:
        return None
    alternatives = [_test_of_all(part) for part in _split(values, "-o")]
    return True if True in alternatives else None if None in alternatives else False


def _test_of_all(values: list[str]) -> bool | None:
    results = [_test_of(part) if 0 < len(part) < 4 else None for part in _split(values, "-a")]
    return False if False in results else None if None in results else True


def _split(values: list[str], joint: str) -> list[list[str]]:
    parts: list[list[str]] = [[]]
    for value in values:
        if value == joint:
            parts.append([])
        else:
            parts[-1].append(value)
    return parts
