"""Read the commands of a launch script, without running anything.

Read is the part of bash that launch scripts are written in: assignments, arrays, quotes, defaults
(`${N:-8}`), integer formulas, `[`, `[[`, `if`, `case`, `&&`, `||`, groups, subshells, pipelines,
functions, jobs in the background, and `eval` and `bash -c` of a text. It is read as in a shell
without parameters. What a loop assigns is unknown, and so is everything that is derived from it: a
script that needs more has its log, which prints the arguments.

The environment is what the user says of it, and empty otherwise. Commands that set up a job, such
as `source env.sh` and `module load cuda`, are assumed to set no variable that the script uses
(`ScriptReader.preparations`); programs are.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from simtrain.base.values import dataclass, field
from simtrain.errors import InputError
from simtrain.guests.importing.shell.expansion import (
    INTEGER,
    NAME,
    BashWord,
    Expansion,
    Field,
    Value,
    WordPart,
    argument_of,
    characters,
    common_value,
    is_vague,
    known,
    unknown_value,
)
from simtrain.guests.importing.shell.syntax import Lines, Node, parse

MAX_COMMANDS = 10_000
"""The most commands that are read, those of loops and functions once for each reading."""
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)\+?=", re.ASCII)
_BATCH_JOB = re.compile("^#SBATCH ", re.MULTILINE)
_PREPARING = "source", ".", "module", "ml", "spack", "conda"
_ASSIGNING = {"read", "mapfile", "readarray", "getopts", "unset", "wait", "printf", "let"}
"""Commands that assign names among their arguments; printf and wait do with an option."""
_SEPARATORS = ";", "&&", "||", "|", "&"
_RELATIONS = ("eq", "ne", "lt", "le", "gt", "ge")
_COMPARISONS = {f"-{name}": getattr(operator, name) for name in _RELATIONS}
_LOOP = "sets in a loop"
_Status = bool | None
_NOTHING: Mapping[str, str] = {}


def read_script(
    text: str,
    lines: Lines,
    variables: Mapping[str, str] = _NOTHING,
    answers: Mapping[str, str] = _NOTHING,
) -> ScriptReader:
    """Read the commands of a script.

    Args:
        text: the script.
        lines: its lines.
        variables: values that the script starts with, such as Slurm's.
        answers: values that a user says: in the environment, and wherever the script leaves them
            unknown, such as after N=$(nproc).

    Raises:
        InputError: the syntax is wrong (E876), the script exceeds a limit (E879), or there is no
            shfmt (E884).
    """
    tree = parse(text, lines)
    reader = ScriptReader(lines, text, answers, _BATCH_JOB.search(text) is not None)
    reader.env |= {name: ((WordPart(each),),) for name, each in {**variables, **answers}.items()}
    try:
        reader.run(tree)
    except RecursionError:
        raise lines.too_large("its commands are nested too deeply", reader.at) from None
    return reader


def words_of(text: str, lines: Lines, answers: Mapping[str, str] = _NOTHING) -> list[BashWord]:
    """Return the words of a text of arguments, in which only quotes and $ have a meaning.

    Raises:
        InputError: a quote has no end (E876).
    """
    expansion = Expansion(lines, text, answers)
    expansion.env |= {name: ((WordPart(each),),) for name, each in answers.items()}
    return [*map(argument_of, expansion.words_of_text(text, [*range(len(text) + 1)]))]


@dataclass(slots=True)
class ScriptReader(Expansion):
    """The evaluation of a script.

    Args:
        commands: the words of each command that the script runs or may run, after all expansions.
        preparations: commands that are assumed to set no variable that the script uses, such as
            "line 5: source env.sh".
        functions: the body of each function of the script.
        ended: the command that ended the current body, such as "exit", or "".
        outer: the values of names outside of the current function, in which they are local.
        may_return: whether the current function may have returned under an unknown condition.
        doubt: the unknown value of the last test, or "".
    """

    commands: list[list[BashWord]] = field(default_factory=list)
    preparations: list[str] = field(default_factory=list)
    functions: dict[str, Node] = field(default_factory=dict)
    ended: str = ""
    outer: dict[str, Value | None] = field(default_factory=dict)
    may_return: bool = False
    doubt: str = ""
    num_commands: int = 0

    # ------------------------------------------------------------------------------------ commands

    def run(self, statements: list[Node] | None) -> _Status:
        """Read commands; return whether the last succeeds, or None if that is unknown."""
        status: _Status = True
        for statement in statements or ():
            if self.ended:
                break
            status = self._statement(statement)
        return status

    def _statement(self, node: Node) -> _Status:
        self.num_commands += 1
        self.at = node["Pos"]
        if self.num_commands > MAX_COMMANDS:
            message = f"the script runs more than {MAX_COMMANDS:,} commands"
            raise self.lines.too_large(message, self.at)
        if node.get("Background"):
            self._child(lambda: self._command(node["Cmd"]))
            return None
        status = self._command(node["Cmd"]) if "Cmd" in node else None
        return None if status is None else status != bool(node.get("Negated"))

    def _command(self, node: Node) -> _Status:
        match node["Type"]:
            case "CallExpr":
                return self._simple(node)
            case "DeclClause":
                return self._declare(node)
            case "Block":
                return self.run(node["Stmts"])
            case "Subshell":
                self._child(lambda: self.run(node["Stmts"]))
            case "IfClause":
                return self._branch(node)
            case "CaseClause":
                return self._cases(node)
            case "ForClause" | "WhileClause":
                self._loop(node)
            case "BinaryCmd" if node["Op"] in ("&&", "||"):
                status = self._statement(node["X"])
                if status is None and not self.ended:
                    self._maybe([lambda: self._statement(node["Y"]), lambda: None])
                elif status == (node["Op"] == "&&") and not self.ended:
                    return self._statement(node["Y"])
                return status
            case "BinaryCmd":
                self._child(lambda: self._statement(node["X"]))
                self._child(lambda: self._statement(node["Y"]))
            case "FuncDecl":
                self.functions[node["Name"]["Value"]] = node["Body"]
                return True
            case "TestClause":
                self.doubt = ""
                return self._test(node["X"])
            case "ArithmCmd":
                number = self.formula(node.get("X"))
                return None if number is None else number != 0
            case "TimeClause" if "Stmt" in node:
                return self._statement(node["Stmt"])
            case _:
                self.taint(NAME.findall(self.slice(node)))
        return None

    def _maybe(self, bodies: Iterable[Callable[[], object]]) -> None:
        """Read bodies of which one will run; a name keeps what all have in common."""
        on = f"on {self.doubt}" if self.doubt else "that is not known"
        reason, at = self.reason(f"sets under a condition {on}"), self.at
        before, ended = self.env, ""
        states = list[dict[str, Value]]()
        for body in bodies:
            self.env, self.at = dict(before), at
            body()
            ended = self.ended or ended
            self.may_return |= self.ended == "return"
            # What follows runs only if a body that ends the script does not run.
            states += [] if self.ended else [self.env]
            self.ended = ""
        self.ended = "" if states else ended
        states = states or [before]
        self.env = {}
        for name in dict.fromkeys(name for env in states for name in env):
            values = [env[name] if name in env else unknown_value(name) for env in states]
            self.env[name] = common_value(name, values, reason)

    def _child(self, body: Callable[[], object]) -> None:
        """Read what a subshell runs."""
        state = self.env, self.lost, self.ended
        self.env = dict(self.env)
        body()
        self.env, self.lost, self.ended = state

    def _changed(self, before: Mapping[str, Value]) -> list[str]:
        return [name for name in self.env if self.env[name] != before.get(name)]

    def _branch(self, node: Node) -> _Status:
        status = self.run(node["Cond"]) if "Cond" in node else True
        otherwise = node.get("Else")
        bodies: list[Callable[[], _Status]] = [
            lambda: self.run(node["Then"]),
            lambda: self._branch(otherwise) if otherwise else True,
        ]
        if self.ended:
            return None
        if status is None:
            self._maybe(bodies)
            return None
        return bodies[not status]()

    def _cases(self, node: Node) -> _Status:
        word, items = self.joined(node["Word"]), node.get("Items", [])
        text = known(word, absent_is_empty=True)
        self.doubt = next((s.text for s in word if s.is_unknown), "")
        for number, item in enumerate(items):
            patterns = [self.pattern(pattern) for pattern in item["Patterns"]]
            if text is None or None in patterns or item["Op"] != ";;":
                bodies = [partial(self.run, each.get("Stmts")) for each in items[number:]]
                self._maybe([*bodies, lambda: None])
                return None
            if any(pattern.fullmatch(text) for pattern in patterns if pattern):
                return self.run(item.get("Stmts"))
        return True

    def _loop(self, node: Node) -> None:
        """Read a loop; nothing is unknown if its body never runs."""
        kind, name = node.get("Loop", {}), node.get("Loop", {}).get("Name", {}).get("Value")
        if name:
            items = [f for word in kind.get("Items", ()) for f in self.fields(word)]
            items = [f for f in items if not all(s.absent for s in f)]
            if not (items if kind.get("InPos") else self.lookup("@")):
                return
        elif not kind:
            count, status = len(self.commands), self.run(node["Cond"])
            if self.ended or (status is not None and status == bool(node.get("Until"))):
                return
            del self.commands[count:]
        assigned, count, at, changed = {name} if name else set(), len(self.commands), self.at, {""}
        self.taint(NAME.findall(self.slice(kind)) if kind and not name else ())
        while changed:  # until all that the body assigns is unknown before it
            del self.commands[count:]
            self.at = at
            self.taint(sorted(assigned), _LOOP)
            before = dict(self.env)
            self.run(node.get("Cond"))
            self.run(node["Do"])
            self.ended = ""
            changed = {*self._changed(before)} - assigned
            assigned |= changed
        self.at = at
        self.taint(sorted(assigned), _LOOP)

    def _assign(self, node: Node) -> None:
        """Read N=8, N+=8, N=(8 9) or N[1]=8."""
        name, array = node["Name"]["Value"], node.get("Array")
        old = self.lookup(name)
        old = () if any(old) and all(s.absent for each in old for s in each) else old
        elements = array.get("Elems", []) if array else []
        if node.get("Index") or any("Index" in element for element in elements):
            self.taint([name])
        elif array:
            fields = [f for element in elements for f in self.fields(element.get("Value", {}))]
            self.bind(name, (*old, *fields) if node.get("Append") else tuple(fields))
        else:
            first = self.element(old, 0, name) if node.get("Append") else ()
            new = (*first, *self.joined(node.get("Value")))
            self.bind(name, (new, *(() if is_vague(old) else old[1:])))

    # ----------------------------------------------------------------------------- simple commands

    def _simple(self, node: Node) -> _Status:
        assigns = node.get("Assigns", [])
        if not node.get("Args"):
            for each in assigns:
                self._assign(each)
            # A command in $(...) gives the assignment its status.
            return None if "CmdSubst" in json.dumps(assigns) else True
        fields = [f for word in node["Args"] for f in self.fields(word)]
        return self._perform(fields) if fields else None

    def _perform(self, words: list[Field]) -> _Status:
        """Read a simple command after all expansions."""
        while len(words) > 1 and words[0] and all(s.absent for s in words[0]):
            words = words[1:]
        name, rest = known(words[0]), words[1:]
        texts = [known(each) for each in rest]
        if name in self.functions:
            return self._call(self.functions[name], tuple(rest))
        if name in (":", "true", "false"):
            return name != "false"
        if name in ("[", "test"):
            return self._old_test(rest[:-1] if name == "[" else rest)
        if name in ("command", "builtin", "exec") and rest and (texts[0] or "-")[0] != "-":
            self._perform(rest)
            self.ended = "exit" if name == "exec" else self.ended
            return None
        self.commands.append([*map(argument_of, words)])
        if name in ("exit", "return", "break", "continue"):
            self.ended = name
        elif name == "eval":
            joined = tuple(s for each in rest for s in (*each, WordPart(" ")))
            commands = self._commands_in(joined)
            if None in texts and not any(_starts_script(words) for words in commands):
                self._prepare(words)
                return None
            self.commands.pop()
            for command in commands:
                self._perform(command)
        elif name in _PREPARING:
            self._prepare(words)
        elif name == "set" or name == "shift":
            self.taint(["@"] if name == "shift" or "--" in texts else ())
        elif name in _ASSIGNING:
            is_option = not texts or texts[0] is None or texts[0].startswith("-")
            if name not in ("printf", "wait") or is_option:
                self.taint(NAME.findall(" ".join(text for text in texts if text)))
        else:
            for each in rest:  # such as the text of `bash -c "torchrun ..."`
                if ".py" in (written := characters(each)) and " --" in written:
                    for command in self._commands_in(each):
                        self._child(partial(self._perform, command))
        return None

    def _prepare(self, words: list[Field]) -> None:
        written = " ".join(map(characters, words))
        self.preparations.append(f"line {self.lines.number(self.at)}: {written}")

    def _declare(self, node: Node) -> _Status:
        """Read export, readonly, declare, typeset or local."""
        options, is_local = "", node["Variant"]["Value"] not in ("export", "readonly")
        for argument in node.get("Args", []):
            name = argument.get("Name", {}).get("Value")
            if name and is_local:
                self.outer.setdefault(name, self.env.get(name))
            if name and not argument.get("Naked"):
                self._assign(argument)
            text = "" if name else characters(self.joined(argument["Value"]))
            if assigned := _ASSIGNMENT.match(text):  # as in export "N=$M"
                self.taint([assigned[1]])
            else:
                options += text
            if name and ((is_local and argument.get("Naked")) or re.search("[^-agprx]", options)):
                self.taint([name])
        return None if options else True

    def _call(self, body: Node, parameters: Value) -> _Status:
        """Read the body of a function."""
        state, before = (self.env.get("@", ()), self.outer, self.may_return), dict(self.env)
        self.env["@"], self.outer, self.may_return = parameters, {}, False
        status = self._statement(body)
        for name, value in self.outer.items():
            self.env.pop(name, None)
            self.env |= {name: value} if value is not None else {}
        if self.may_return:
            self.taint(name for name in self._changed(before) if name != "@")
        self.env["@"], self.outer, self.may_return = state
        is_over = self.ended != "exit"
        self.ended = "" if is_over else "exit"
        return None if self.ended else status

    def _commands_in(self, text: Field) -> list[list[Field]]:
        """Return the words of the commands in a text, without the variables that they set."""
        written, places = "", list[int]()
        for s in text:
            written += s.text
            places += [s.offset + (0 if s.is_unknown else n) for n in range(len(s.text))]
        try:
            words = self.words_of_text(written, [*places, self.at])
        except InputError:
            return []
        commands: list[list[Field]] = [[]]
        for word in words:
            written = characters(word)
            if assigned := not commands[-1] and _ASSIGNMENT.match(written):
                self.taint([assigned[1]])
            elif written in _SEPARATORS:
                commands.append([])
            else:
                commands[-1].append(word)
        return [command for command in commands if command]

    # --------------------------------------------------------------------------------------- tests

    def _old_test(self, words: list[Field]) -> _Status:
        """Decide `[ ... ]`; an unset name is empty, and no operand without quotes."""
        words = [each for each in words if not (each and all(s.absent and s.several for s in each))]
        self.doubt = next((s.text for each in words for s in each if s.is_unknown), "")
        texts = [known(each, absent_is_empty=True) for each in words]
        if texts[:1] == ["!"] and len(texts) > 1:
            status = self._old_test(words[1:])
            return None if status is None else not status
        if None in texts or any(s.several for each in words for s in each):
            return None
        match texts:
            case [str(text)]:
                return text != ""
            case [str(kind), str(text)]:
                return _decided(text, kind, "")
            case [str(left), "=" | "==" | "!=" as kind, right]:
                return (left == right) == (kind != "!=")
            case [str(left), str(kind), str(right)]:
                return _decided(left, kind, right)
        return None if texts else False

    def _test(self, node: Node) -> _Status:
        """Decide `[[ ... ]]`; shfmt's tree gives "!", && and || one precedence."""
        terms, negated = [list[_Status]()], False
        for token in _tokens(node):
            if token == "!":
                negated = not negated
            elif token == "||":
                terms.append([])
            elif not isinstance(token, str):
                status = self._leaf(token)
                terms[-1].append(status if status is None else status != negated)
                negated = False
        decided = [False if False in term else None if None in term else True for term in terms]
        return True if True in decided else None if None in decided else False

    def _leaf(self, node: Node) -> _Status:
        """Decide a part of `[[ ... ]]` without "!", && and ||."""
        if node["Type"] == "ParenTest":
            return self._test(node["X"])
        kind = node.get("Op", "-n")
        left, right = self.joined(node.get("X", node)), self.joined(node.get("Y"))
        unknown = (s.text for s in (*left, *right) if s.is_unknown)
        self.doubt = self.doubt or next(unknown, "")
        text, other = (known(each, absent_is_empty=True) for each in (left, right))
        if text is None:
            return None
        if kind in ("==", "=", "!="):
            pattern = self.pattern(node["Y"])
            return None if pattern is None else bool(pattern.fullmatch(text)) == (kind != "!=")
        return None if other is None else _decided(text, kind, other)


def _starts_script(words: list[Field]) -> bool:
    return any(characters(word).endswith(".py") for word in words)


def _decided(left: str, kind: str, right: str) -> _Status:
    """Decide a test of a text, or a comparison of two numbers; None for all others."""
    if kind in ("-n", "-z"):
        return not left if kind == "-z" else bool(left)
    if kind not in _COMPARISONS or not all(map(INTEGER.fullmatch, (left, right))):
        return None
    return bool(_COMPARISONS[kind](int(left), int(right)))


def _tokens(node: Node) -> list[Node | str]:
    """Return the parts of a test and the operators between them, in their order."""
    if node["Type"] == "UnaryTest" and node["Op"] == "!":
        return ["!", *_tokens(node["X"])]
    if node["Type"] == "BinaryTest" and node["Op"] in ("&&", "||"):
        return [*_tokens(node["X"]), node["Op"], *_tokens(node["Y"])]
    return [node]
