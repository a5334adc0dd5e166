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
from collections.abc import Iterable, Mapping
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
    Case,
    CommandList,
    HereDocument,
    If,
    Literal,
    Loop,
    Node,
    Not,
    Opaque,
    Part,
    ShellFunction,
    Simple,
    Subshells,
    Test,
    Variable,
    Word,
)
from simtrain.importing.shell.texts import (
    State,
    Text,
    TextSegment,
    UnknownText,
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


def read_script(text: str, lines: Lines, environment: Environment = NOTHING) -> ScriptReader:
    """Read the commands of a script.

    Raises:
        InputError: the syntax is wrong or not read, or the script exceeds a limit.
    """
    _check_length(text, lines)
    is_batch_job = _BATCH_JOB.search(text) is not None
    variables = Variables(lines, _values(environment.answers), is_batch_job=is_batch_job)
    variables.values |= {**_values(environment.variables), **variables.answers}
    reader = ScriptReader(variables)
    reader.read(Parser(text, lines).parse())
    return reader


def words_of(text: str, lines: Lines, environment: Environment = NOTHING) -> list[Argument]:
    """Return the words of a text of arguments, in which only quotes and $ have a meaning.

    Raises:
        InputError: a quote or bracket is not closed, or the text exceeds a limit.
    """
    _check_length(text, lines)
    variables = Variables(lines, _values(environment.answers), has_patterns=False)
    variables.values |= variables.answers
    return variables.arguments(Parser(text, lines).words())


def _values(texts: Mapping[str, str]) -> dict[str, Value]:
    return {name: Value(((TextSegment(text, 0),),)) for name, text in texts.items()}


def _check_length(text: str, lines: Lines) -> None:
    if len(text) > MAX_CHARACTERS:
        message = f"the text has {len(text):,} characters, more than {MAX_CHARACTERS:,}"
        raise too_large(message, lines, 0)


@dataclass(slots=True)
class ScriptReader:
    """Reader of a script.

    Args:
        variables: the variables at the current command.
        commands: the words of each command that the script runs or may run, after all expansions.
        files: the files that the script writes from its here-documents, by their path. An unknown
            value in a path stands in it by its name, such as ds.$SLURM_JOB_ID.json.
        functions: the bodies of each function of the script.
        repetitions: the number of loops and calls around the current command.
        has_ended: whether the script has run `exit` or `exec`.
        doubt: the unknown variable of the last test, or "".
    """

    variables: Variables
    commands: list[list[Argument]] = field(default_factory=list)
    files: dict[str, Argument] = field(default_factory=dict)
    functions: dict[str, list[Node]] = field(default_factory=dict)
    repetitions: int = 0
    has_ended: bool = False
    doubt: str = ""
    depth: int = 0
    num_commands: int = 0

    def values(self) -> list[list[Argument]]:
        """Return the words of each variable at the end, or the commands in its text."""
        values, start, self.has_ended = list[list[Argument]](), len(self.commands), False
        for name, value in [*self.variables.values.items()]:
            if isinstance(value, Value) and name.isidentifier():
                with suppress(InputError):  # The text is no script.
                    for text in value.elements:
                        self._read_child(text)
                words = Parser(f"${{{name}[@]}}", self.variables.lines).words()
                values += self.commands[start:] or [self.variables.arguments(words)]
                del self.commands[start:]
        return [words for words in values if words]

    def variable(self, name: str) -> Argument | None:
        """Return the text of a variable at the end; None if it has none."""
        words = self.variables.arguments(Parser(f'"${name}"', self.variables.lines).words())
        return words[0] if words and words[0].unknown is None and words[0].text else None

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
            case CommandList():
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
            case ShellFunction():
                self.functions.setdefault(node.name, []).append(node.body)
                return True
            case Opaque():
                for name in IDENTIFIER.findall(node.source):
                    self.variables.integer(name)
                if ASSIGNING.search(node.source):
                    self.variables.taint(node.source)
        return None

    def _block(self, node: CommandList) -> bool | None:
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
        state, has_ended = self.variables.state(), self.has_ended
        if is_opaque:
            self.variables.values, self.variables.is_forgotten = {}, True
        self.read(node)
        self.variables.restore(state)
        self.has_ended = has_ended

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
            state = self.variables.state()
            self.read(node)
            if self.has_ended:  # What follows runs only if these commands do not.
                self.variables.restore(state)
                self.has_ended = False
        self.variables.doubts.pop()

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
        self._repeat(CommandList(commands), "in a loop", node.assigned)

    def _call(self, name: str) -> None:
        """Read the bodies of a function, of which the parameters and the results are unknown."""
        parameters = self.variables.assigned("@") or UnknownText(True)
        self.variables.put("@", UnknownText(True))
        for body in self.functions[name]:
            self._repeat(body, "in a function")
        self.variables.put("@", parameters)

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
            self.variables.arrays.update(IDENTIFIER.findall(node.source))
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
        if name == "exec" and len(arguments) > 1:
            self.commands.pop()
            self._command(known_text(arguments[1]) or "", arguments[1:], node)
            self.has_ended = True
            return None
        if name == "cat" and len(arguments) == 1 and node.target and node.document:
            self._write(node.target, node.document)
        if name in ("[", "test"):
            return self._old_test(name, node.words)
        if name in _BUILTINS:
            return self._builtin(name, arguments[1:], node.source)
        if name in _STARTERS or "/" in name or name.endswith(".py"):
            for text in arguments[1:]:
                self._read_child(text)
        return None

    def _builtin(self, name: str, arguments: list[Text], source: str) -> bool | None:
        """Read a builtin that sets variables, or changes what later commands do."""
        texts = [known_text(text) for text in arguments]
        match name:
            case ":" | "true" | "false":
                return name != "false"
            case "exit":
                self.has_ended = True
            case "source" | ".":
                self.variables.forget()
            case "eval":
                self.read(self._parsed(arguments))
                if None in texts:
                    self.variables.forget()
            case "set":
                self._set(texts)
                return True
            case "trap" if all(text and _ENDING_SIGNAL.fullmatch(text) for text in texts[1:]):
                pass  # Other signals run their commands between any two of the script.
            case "command" | "builtin" if texts and texts[0] not in (None, *_BUILTINS):
                pass
            case "printf" | "wait" if texts and not (texts[0] or "-").startswith("-"):
                pass
            case _ if name in _ASSIGNING_BUILTINS:
                self.variables.taint(f"{source} REPLY MAPFILE OPTARG OPTIND", is_several=True)
                if name in ("mapfile", "readarray") or "-a" in texts:
                    self.variables.arrays.update(IDENTIFIER.findall(source))
                if None in texts and name not in ("printf", "wait"):
                    self.variables.lose()
            case _:
                self.variables.lose()
        return None

    def _set(self, texts: list[str | None]) -> None:
        option = ""
        for text in texts:
            is_name = option.endswith("o") and text in _OPTIONS
            if text is not None and (is_name or _OPTION.fullmatch(text)):
                option = text
            elif text == "--" or (text and text[0] not in "+-"):
                self.variables.bind("@", UnknownText(True))
                break
            else:
                self.variables.lose()

    def _declare(self, builtin: str, words: tuple[Word, ...], source: str) -> bool | None:
        """Read `export`, `declare` and their like, of plain names and assignments."""
        options = [word for word in words if word.start.startswith(("-", "+"))]
        letters = {letter for word in options for letter in (word.literal or "-?")[1:]}
        names = [word for word in words if word not in options]
        is_read = letters <= {*"aprx"} or (builtin == "export" and letters <= {*"fn"})
        if builtin == "local" and not self.repetitions:
            self.variables.taint(source)  # An error: bash assigns nothing.
        elif not is_read or not all(map(_is_plain, names)):
            self.variables.taint(source, is_several=True)
            are_literal = all(isinstance(part, Literal) for word in names for part in word.parts)
            if not is_read or not are_literal:
                self.variables.lose()  # Attributes change later values; expansions give names.
        else:
            for word in names:
                if ASSIGNMENT.match(word.start):
                    self.variables.assign(word)
                elif self.repetitions:
                    self.variables.taint(word.source)
                if builtin == "readonly" or "r" in letters:
                    self.variables.readonly.update(IDENTIFIER.findall(word.start)[:1])
            return None if options else True
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

    def _read_child(self, text: Text) -> None:
        """Read an argument that is a script, as of `bash -c "torchrun ..."`."""
        written = "".join(segment.text for segment in text if segment.is_known)
        if ".py" in written and " --" in written:
            self._subshell(self._parsed([text]), is_opaque=True)

    def _parsed(self, texts: Iterable[Text]) -> Node:
        """Parse texts that a command evaluates, with blanks between them."""
        pieces = [
            (segment.text, segment.offset, segment.is_known)
            for text in texts
            for segment in (*text, TextSegment(" ", text[-1].offset if text else 0))
        ]
        return evaluated_text(pieces, self.variables.lines).parse()

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


def _is_plain(word: Word) -> bool:
    """Return whether a word of `export` is a name or an assignment."""
    return bool(ASSIGNMENT.match(word.start) or IDENTIFIER.fullmatch(word.literal or ""))


def _may_assign(part: Part) -> bool:
    """Return whether an expansion may assign, as ${N:=8} and $((N++)) do."""
    return isinstance(part, Variable | Arithmetic) and ASSIGNING.search(part.source) is not None


def _has_no_operator(word: Word) -> bool:
    """Return whether a word of `[[` has no parenthesis or operator beside other characters."""
    return word.literal in ("&&", "||") or not re.search("[()|&;<>]", word.plain)


_OPTION = re.compile(r"[-+](?:[abeEhmuvxCT]+o?|o)")
_OPTIONS = ("pipefail", "errexit", "nounset", "xtrace", "verbose", "allexport", "errtrace")
_ENDING_SIGNAL = re.compile(r"0|2|15|EXIT|(SIG)?(INT|TERM|HUP|QUIT)")
_DECLARATIONS = frozenset({"export", "readonly", "declare", "typeset", "local"})
_ASSIGNING_BUILTINS = frozenset(
    {"coproc", "getopts", "let", "mapfile", "printf", "read", "readarray", "unset", "wait"}
)
"""Commands that assign names among their arguments; printf and wait do with an option."""
_BUILTINS = (
    frozenset({":", "true", "false", "exit", "source", ".", "eval", "exec", "set", "trap", "shopt"})
    | {"command", "builtin", "enable", "fc"}
    | _ASSIGNING_BUILTINS
    | _DECLARATIONS
)
