"""Read the commands of a launch script, without running anything.

Read is the part of bash that launch scripts are written in: assignments, arrays, quotes, defaults
(`${N:-8}`), integer formulas, `[`, `[[`, `if`, `case`, `&&`, `||`, groups, subshells, pipelines,
functions' parameters, jobs in the background, here-documents, and `eval` and `bash -c` of a text.
It is read as in a shell without parameters whose folder has no files. What a loop or a function
assigns is unknown. All else makes the names that it could assign unknown, and so every value that
is derived from them: a script that needs more is for `simtrain.importing.capture`, with which the
user's own shell runs it.

The environment is what the user says of it (`Environment`), and empty otherwise. Commands that set
up a job, such as `source env.sh` and `module load cuda`, are assumed to set no variable that the
script uses (`ScriptReader.preparations`).
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from simtrain.errors import InputError
from simtrain.importing.shell.expansion import NAME, Expansion, words_in
from simtrain.importing.shell.syntax import Lines, Node, Source, parse
from simtrain.importing.shell.values import (
    Argument,
    Field,
    Segment,
    Value,
    argument_of,
    characters,
    common_value,
    is_vague,
    known,
    unknown_value,
)

MAX_COMMANDS = 10_000
"""The most commands that are read, those of loops and functions once for each reading."""
_MAX_CALLS = 30
_MOST_HOLES = 6000
_MOST_PARSED = 100
"""The most texts that are parsed again, as those of `eval`."""
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=", re.ASCII)
_ASSIGNS = re.compile(r"(?s)\$\{[^}]*=|\$(?:\(\(|\[).*?([^=!<>]=[^=]|<<=|>>=|\+\+|--)")
"""Whether an expansion in a text may assign, as ${N:=8} and $((N++)) do."""
_BATCH_JOB = re.compile("^#SBATCH ", re.MULTILINE)
_ENDING = re.compile(r"0|2|15|EXIT|(SIG)?(INT|TERM|HUP|QUIT)")
_OPTIONS = re.compile(
    r"^(?:[-+](?:[abeEhmuvxCT]+|[abeEhmuvxCT]*o "
    r"(?:pipefail|errexit|nounset|xtrace|verbose|allexport|errtrace))(?: |$))+"
)
"""Options of `set` without effect on values."""
_PREPARING = "source", ".", "module", "ml", "spack"
_ASSIGNING = {"read", "mapfile", "readarray", "getopts", "unset", "wait", "printf", "let"}
"""Commands that assign names among their arguments; printf and wait do with an option."""
_DECLARING = "export", "readonly", "declare", "typeset", "local"
_CHANGING = "shopt", "alias", "enable", "fc", "exec", "command", "builtin", "coproc"
"""Commands that change what later commands do."""
_BINARY = ("=", "==", "!=", "<", ">", "-a", "-o", "-nt", "-ot", "-ef")
_INTEGER = re.compile(r"-?(0|[1-9]\d{0,17})")
_RELATIONS = ("eq", "ne", "lt", "le", "gt", "ge")
_COMPARISONS = {f"-{name}": getattr(operator, name) for name in _RELATIONS}


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
        InputError: the syntax is wrong or not read (E876), the script exceeds a limit (E879), or
            there is no shfmt (E884).
    """
    source = parse(text, lines)
    values = {**environment.variables, **environment.answers}
    is_batch_job = _BATCH_JOB.search(text) is not None
    reader = ScriptReader(lines, source, environment.answers, is_batch_job)
    reader.env |= {name: ((Segment(value),),) for name, value in values.items()}
    try:
        reader.run(source.tree)
    except RecursionError:
        raise lines.too_large("its commands are nested too deeply", reader.at) from None
    return reader


def words_of(text: str, lines: Lines, environment: Environment = NOTHING) -> list[Argument]:
    """Return the words of a text of arguments, in which only quotes and $ have a meaning.

    Errors are those of `read_script`.
    """
    source = parse(text, lines, is_words=True)
    expansion = Expansion(lines, source, environment.answers)
    expansion.env |= {name: ((Segment(each),),) for name, each in environment.answers.items()}
    fields = [f for word in source.tree[0]["Cmd"]["Args"][1:] for f in expansion.fields(word)]
    return [argument_of(each, has_patterns=False) for each in fields]


@dataclass(slots=True)
class ScriptReader(Expansion):
    """The evaluation of a script.

    Args:
        commands: the words of each command that the script runs or may run, after all expansions.
        files: the files that the script writes from its here-documents, by their path. An unknown
            value in a path stands in it by its source, such as ds.$SLURM_JOB_ID.json.
        preparations: commands that are assumed to set no variable that the script uses, such as
            "line 5: source env.sh".
        functions: the bodies of each function of the script.
        ended: the command that ended the current body, such as "exit", or "".
        doubt: the unknown value of the last test, or "".
    """

    commands: list[list[Argument]] = field(default_factory=list)
    files: dict[str, Argument] = field(default_factory=dict)
    preparations: list[str] = field(default_factory=list)
    functions: dict[str, list[tuple[Source, Node]]] = field(default_factory=dict)
    ended: str = ""
    doubt: str = ""
    num_calls: int = 0
    num_loops: int = 0
    num_commands: int = 0
    num_parsed: int = 0

    def variable(self, name: str) -> Argument | None:
        """Return the text of a variable at the end; None if it has none that is known."""
        segments = self.scalar(name)
        return argument_of(segments) if known(segments) else None

    def values(self) -> list[list[Argument]]:
        """Return the words of each variable at the end, or the commands in its text."""
        values = list[list[Argument]]()
        for name, value in [*self.env.items()]:
            start, self.ended = len(self.commands), ""
            if name.isidentifier():
                for text in value:
                    self._read_child(text)
                fields = words_in(self.emit([*value], "@", False, True, 0, ""))
                values += self.commands[start:] or [[argument_of(each) for each in fields]]
                del self.commands[start:]
        return [words for words in values if words]

    # ------------------------------------------------------------------------------------ commands

    def run(self, statements: list[Node] | None) -> bool | None:
        """Read commands; return whether the last succeeds, or None if that is unknown."""
        status: bool | None = True
        for statement in statements or ():
            if self.ended:
                break
            status = self._statement(statement)
        return status

    def _statement(self, node: Node) -> bool | None:
        self.num_commands += 1
        self.at = self.source.place(node["Pos"])
        if self.num_commands > MAX_COMMANDS:
            message = f"the script runs more than {MAX_COMMANDS:,} commands"
            raise self.lines.too_large(message, self.at)
        redirections = node.get("Redirs", [])
        self._write_document(node.get("Cmd") or {}, redirections)
        for each in redirections:
            self.taint(NAME.findall(each.get("N", {}).get("Value", "")))
            for text in (each.get("Word"), each.get("Hdoc")):
                written = self.source.slice(text) if text else ""
                if _ASSIGNS.search(written):  # or not, in the process of another program
                    self.taint(NAME.findall(written))
        status: bool | None = None
        if node.get("Background"):
            self._child(lambda: self._command(node["Cmd"]))
        elif "Cmd" in node:
            status = self._command(node["Cmd"])
        if status is None or redirections:
            return None
        return status != bool(node.get("Negated"))

    def _write_document(self, command: Node, redirections: list[Node]) -> None:
        """Note the file that a here-document becomes; unknown if it is written with two texts."""
        documents = [self.document(each) for each in redirections if each.get("Hdoc")]
        targets = [each["Word"] for each in redirections if each["Op"] == ">"]
        words = command.get("Args", [])
        if documents and targets and len(words) == 1 and self.source.slice(words[0]) == "cat":
            path = characters(self.joined(targets[-1]))
            content = argument_of(documents[-1])
            if self.files.get(path, content).text != content.text:
                unknown = f"${path}"
                content = replace(content, unknown=unknown, reason="which is written twice")
            self.files[path] = content

    def _command(self, node: Node) -> bool | None:
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
                bodies = self.functions.setdefault(node["Name"]["Value"], [])
                bodies.append((self.source, node["Body"]))
                return True
            case "TestClause":
                return self._test(node["X"])
            case "ArithmCmd":
                number = self.formula(node.get("X"))
                return None if number is None else number != 0
            case "TimeClause" if "Stmt" in node:
                return self._statement(node["Stmt"])
            case _:
                self.lose()
        return None

    def _maybe(self, bodies: Iterable[Callable[[], object]]) -> None:
        """Read bodies of which one will run; a name keeps what all have in common."""
        on = f"on {self.doubt}" if self.doubt else "that is not known"
        reason, at = self.reason(f"sets under a condition {on}"), self.at
        before, ended = (self.env, self.lost), ""
        states = list[tuple[dict[str, Value], str]]()
        for body in bodies:
            self.env, self.lost, self.at = dict(before[0]), before[1], at
            body()
            ended = self.ended or ended
            # What follows runs only if a body that ends the script does not run.
            states += [] if self.ended else [(self.env, self.lost)]
            self.ended = ""
        self.ended = "" if states else ended
        states = states or [before]
        self.lost = next((lost for _, lost in states if lost), "")
        self.env = {}
        for name in dict.fromkeys(name for env, _ in states for name in env):
            values = [env[name] if name in env else unknown_value(name) for env, _ in states]
            self.env[name] = common_value(name, values, reason)

    def _child(self, body: Callable[[], object], is_opaque: bool = False) -> None:
        """Read what a subshell runs; an opaque one has none of the variables."""
        state = self.env, self.lost, self.is_lost, self.ended
        touched = self.touched
        self.env = {} if is_opaque else dict(self.env)
        self.lost = self.lost or "which that shell may have" * is_opaque
        self.touched = {*touched}
        body()
        self.env, self.lost, self.is_lost, self.ended = state
        self.touched = touched

    def _repeat(self, body: Callable[[], object], how: str) -> str:
        """Read what runs any number of times: all that it assigns is unknown, before and after.

        Returns:
            The command that ended it, or "".
        """
        outer, self.touched, count, at = self.touched, set(), len(self.commands), self.at
        while True:
            assigned = {*self.touched}
            del self.commands[count:]
            self.at = at
            self.taint(sorted(assigned - {"*"}), how)
            env = dict(self.env)
            body()
            self.env = {} if "*" in self.touched else env
            ended, self.ended = self.ended, ""
            if self.touched == assigned or how == _CALL:
                break
        self.at = at
        self.taint(sorted(self.touched - {"*"}), how)
        self.touched |= outer
        return ended

    def _branch(self, node: Node) -> bool | None:
        status = self.run(node["Cond"]) if "Cond" in node else True
        otherwise = node.get("Else")
        bodies: list[Callable[[], bool | None]] = [
            lambda: self.run(node["Then"]),
            lambda: self._branch(otherwise) if otherwise else True,
        ]
        if self.ended:
            return None
        if status is None:
            self._maybe(bodies)
            return None
        return bodies[not status]()

    def _cases(self, node: Node) -> bool | None:
        word, items = self.joined(node["Word"]), node.get("Items", [])
        text = known(word, absent_is_empty=True)
        self.doubt = next((s.unknown for s in word if s.unknown), "")
        if any(item["Op"] != ";;" for item in items):
            self.lose()
            return None
        for number, item in enumerate(items):
            patterns = [self.pattern(pattern) for pattern in item["Patterns"]]
            if text is None or None in patterns:
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
        elif kind:
            self.formula(kind.get("Init"))
        else:
            count, status = len(self.commands), self.run(node["Cond"])
            if self.ended or (status is not None and status == bool(node.get("Until"))):
                return
            del self.commands[count:]

        def body() -> None:
            self.taint([name, *["REPLY"] * bool(node.get("Select"))] if name else (), _LOOP)
            self.formula(kind.get("Cond"))
            self.run(node.get("Cond"))
            self.run(node["Do"])
            self.formula(kind.get("Post"))

        self.num_loops += 1
        self._repeat(body, _LOOP)
        self.num_loops -= 1

    def _assign(self, node: Node) -> None:
        """Read N=8, N+=8, N=(8 9) or N[1]=8."""
        name, array = node["Name"]["Value"], node.get("Array")
        old = self.lookup(name)
        old = () if any(old) and all(s.absent for each in old for s in each) else old
        elements = array.get("Elems", []) if array else []
        if node.get("Index") or any("Index" in element for element in elements):
            for element in elements:
                self.joined(element.get("Value"))
            self.joined(node.get("Value"))
            self.arrays.add(name)
            self.taint([name])
        elif array:
            self.arrays.add(name)
            fields = [f for element in elements for f in self.fields(element.get("Value", {}))]
            self.bind(name, (*old, *fields) if node.get("Append") else tuple(fields))
        else:
            new = self.joined(node.get("Value"), is_assigned=True)
            first = self.element(old, 0, name) if node.get("Append") else ()
            others = old[1:]
            if is_vague(old):
                others = unknown_value(name) if name in self.arrays else ()
            self.bind(name, ((*first, *new), *others))

    # ----------------------------------------------------------------------------- simple commands

    def _simple(self, node: Node) -> bool | None:
        assigns = node.get("Assigns", [])
        if not node.get("Args"):
            for each in assigns:
                self._assign(each)
            # A command in $(...) gives the assignment its status.
            return None if "CmdSubst" in json.dumps(assigns) else True
        fields = [f for word in node["Args"] for f in self.fields(word)]
        for each in assigns:
            self.joined(each.get("Value"))
        names = [each["Name"]["Value"] for each in assigns]
        return self._perform(fields, names) if fields else None

    def _perform(self, words: list[Field], prefixes: Iterable[str] = ()) -> bool | None:
        """Read a simple command after all expansions; `prefixes` are names that it sets first."""
        while len(words) > 1 and words[0] and all(s.absent for s in words[0]):
            words = words[1:]
        name, rest = known(words[0]), words[1:]
        arguments = [argument_of(each) for each in words]
        is_function = name in self.functions
        self.commands.append([replace(arguments[0], is_function=is_function), *arguments[1:]])
        texts = [known(each) for each in rest]
        if is_function or name in (*_ASSIGNING, *_DECLARING, "eval"):
            self.taint(prefixes)
        if is_function:
            self._call(name or "", tuple(rest))
        elif name is None:
            # A training script sets nothing; another command could be `export`.
            if not any(argument.text.endswith(".py") for argument in arguments):
                self.forget()
        elif name in (":", "true", "false"):
            return name != "false"
        elif name in ("[", "test"):
            if name == "[" and texts[-1:] != ["]"]:
                return None
            return self._old_test(rest[:-1] if name == "[" else rest)
        elif name in ("command", "builtin", "exec") and rest and (texts[0] or "-")[0] != "-":
            self.commands.pop()
            self._perform(rest, prefixes)
            self.ended = "exit" if name == "exec" else self.ended
        elif name in ("exit", "return", "break", "continue"):
            # The others are errors where they end nothing.
            is_inside = self.num_calls if name == "return" else self.num_loops
            self.ended = name if name == "exit" or is_inside else ""
        elif name in _PREPARING:
            line = self.lines.number(self.at)
            written = " ".join(argument.text for argument in arguments)
            self.preparations.append(f"line {line}: {written}")
        elif name == "eval":
            joined = tuple(s for each in rest for s in (*each, Segment(" ")))
            if not self._nested(joined):
                self.lose()
            elif None in texts:
                self.forget()
        elif name == "set":
            rest_of = _OPTIONS.sub("", " ".join(text or "?" for text in texts))
            if None in texts or (rest_of[:1] in ("+", "-") and rest_of[:2] != "--"):
                self.lose()
            self.taint(["@"] if rest_of else ())
            return True
        elif name == "shift":
            self.taint(["@"])
        elif name in _ASSIGNING:
            is_option = not texts or texts[0] is None or texts[0].startswith("-")
            if name not in ("printf", "wait") or (texts and is_option):
                self.taint(["REPLY", "MAPFILE", "OPTARG", "OPTIND"])
                names = NAME.findall(" ".join(text for text in texts if text))
                self.arrays.update(names)
                self.taint(names)
                if None in texts:
                    self.lose()
        elif name in (*_DECLARING, *_CHANGING):
            self.lose()
        elif name == "trap" and not all(_ENDING.fullmatch(text or "") for text in texts[1:]):
            self.lose()  # Other signals run their commands between any two of the script.
        else:
            for each in rest:
                self._read_child(each)
        return None

    def _declare(self, node: Node) -> bool | None:
        """Read export, readonly, declare, typeset or local."""
        variant, arguments = node["Variant"]["Value"], node.get("Args", [])
        options = [self.joined(each["Value"]) for each in arguments if "Name" not in each]
        letters = ""
        for segments in options:
            assigned = _ASSIGNMENT.match(segments[0].text) if segments else None
            if assigned and not segments[0].unknown:  # as in export "N=$M"
                rest = replace(segments[0], text=segments[0].text[assigned.end() :])
                self.bind(assigned[1], ((rest, *segments[1:]),))
            else:
                letters += known(segments) or "?"
        if not re.fullmatch("(-[agprx]+)*", letters):
            self.lose()  # an attribute that changes values, or any name
        for argument in arguments:
            name = argument.get("Name", {}).get("Value")
            if not name:
                continue
            if not argument.get("Naked"):
                self._assign(argument)
            is_local = variant != "export" and (self.num_calls or variant == "local")
            if "{" in re.sub(r"\$\{", "", self.source.slice(argument)) or (
                is_local and (argument.get("Naked") or not self.num_calls)
            ):
                self.taint([name])
            if variant == "readonly" or "r" in letters:
                self.readonly.add(name)
        return None if options else True

    def _call(self, name: str, parameters: Value) -> None:
        """Read the bodies of a function; its parameters are known, and what it assigns is not."""
        if self.num_calls >= _MAX_CALLS:
            message = f"the script runs calls nested more than {_MAX_CALLS} deep"
            raise self.lines.too_large(message, self.at)
        outer, source, loops = self.env.get("@"), self.source, self.num_loops
        self.num_calls += 1
        self.num_loops = 0

        def body() -> None:
            self.env["@"] = parameters
            for text, node in self.functions[name]:
                self.source = text
                self._statement(node)
                if self.ended in ("return", "break", "continue"):
                    self.ended = ""

        ended = self._repeat(body, _CALL)
        self.num_calls -= 1
        self.source, self.num_loops = source, loops
        if outer is not None:
            self.env["@"] = outer
        self.ended = "exit" if ended == "exit" else ""

    def _read_child(self, text: Field) -> None:
        """Read an argument that is a script, as of `bash -c "torchrun ..."`."""
        written = characters(text)
        if ".py" in written and " --" in written:
            self._child(lambda: self._nested(text), is_opaque=True)

    def _nested(self, text: Field) -> bool:
        """Read a text as commands; return whether it could be parsed."""
        written, places, holes = "", list[int](), dict[str, Segment]()
        for s in text:
            piece = chr(0xE000 + len(holes)) if s.unknown else s.text
            holes |= {piece: s} if s.unknown else {}
            places += [s.offset + (0 if s.unknown else n) for n in range(len(piece))]
            written += piece
        self.num_parsed += 1
        if self.num_parsed > _MOST_PARSED or len(holes) > _MOST_HOLES:
            message = f"more than {_MOST_PARSED} texts of the script are scripts themselves"
            raise self.lines.too_large(message, self.at)
        try:
            source = parse(written, self.lines, [*places, self.at])
            source.holes = holes
        except InputError:
            return False
        outer, self.source = self.source, source
        self.run(source.tree)
        self.source = outer
        return True

    # --------------------------------------------------------------------------------------- tests

    def _old_test(self, words: list[Field]) -> bool | None:
        """Decide `[ ... ]`; an unset name is empty, and no operand without quotes."""
        words = [each for each in words if not (each and all(s.absent and s.several for s in each))]
        self.doubt = next((s.unknown for each in words for s in each if s.unknown), "")
        texts = [known(each, absent_is_empty=True) for each in words]
        is_operand = len(texts) == 3 and texts[1] in (*_BINARY, *_COMPARISONS)
        if texts[:1] == ["!"] and len(texts) > 1 and not is_operand:
            status = self._old_test(words[1:])
            return None if status is None else not status
        if None in texts or len(texts) > 3 or any(s.several for each in words for s in each):
            return None
        match texts:
            case [text]:
                return text != ""
            case ["-z" | "-n" as kind, text]:
                return (text == "") == (kind == "-z")
            case [left, "=" | "==" | "!=" as kind, right]:
                return (left == right) == (kind != "!=")
            case [left, kind, right]:
                return _compared(left or "", kind or "", right or "")
        return None if texts else False

    def _test(self, node: Node) -> bool | None:
        """Decide `[[ ... ]]`; shfmt's tree gives "!", && and || one precedence."""
        self.doubt = ""
        if _ASSIGNS.search(self.source.slice(node)):
            self.taint(NAME.findall(self.source.slice(node)))  # bash may leave the part out
            return None
        terms, negated = [list[bool | None]()], False
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

    def _leaf(self, node: Node) -> bool | None:
        """Decide a part of `[[ ... ]]` without "!", && and ||."""
        if node["Type"] == "ParenTest":
            doubt, status = self.doubt, self._test(node["X"])
            self.doubt = doubt or self.doubt
            return status
        kind = node.get("Op", "-n")
        left = self.joined(node.get("X", node))
        right = self.joined(node.get("Y"))
        unknown = (s.unknown for s in (*left, *right) if s.unknown)
        self.doubt = self.doubt or next(unknown, "")
        text, other = (known(each, absent_is_empty=True) for each in (left, right))
        if kind in _COMPARISONS:
            for each, segments in ((text, left), (other, right)):
                is_formula = each is None and any(s.variable in self.texts for s in segments)
                if is_formula or (each and not _INTEGER.fullmatch(each)):
                    self.lose()  # A formula can assign or fail.
        if text is None:
            return None
        if kind in ("-n", "-z"):
            return not text if kind == "-z" else bool(text)
        if kind in ("==", "=", "!="):
            pattern = self.pattern(node["Y"])
            return None if pattern is None else bool(pattern.fullmatch(text)) == (kind != "!=")
        return None if other is None else _compared(text or "0", kind, other or "0")


_LOOP, _CALL = "sets in a loop", "sets in a function"


def _compared(left: str, kind: str, right: str) -> bool | None:
    if kind not in _COMPARISONS or not all(map(_INTEGER.fullmatch, (left, right))):
        return None
    return bool(_COMPARISONS[kind](int(left), int(right)))


def _tokens(node: Node) -> list[Node | str]:
    """Return the parts of a test and the operators between them, in their order."""
    if node["Type"] == "UnaryTest" and node["Op"] == "!":
        return ["!", *_tokens(node["X"])]
    if node["Type"] == "BinaryTest" and node["Op"] in ("&&", "||"):
        return [*_tokens(node["X"]), node["Op"], *_tokens(node["Y"])]
    return [node]
