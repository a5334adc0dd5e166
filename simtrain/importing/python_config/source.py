"""A Python file with configs, its errors, and the choice of one config."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from simtrain.errors import InputError, Location, did_you_mean
from simtrain.importing.python_config.reader import Function, Reader, TooLong
from simtrain.importing.python_config.values import Built, is_small_tree, unknown_in

MOST_BYTES = 1 << 19
"""Of a file; the longest of the tools' own has a tenth of it."""
_MOST_NAMES = 40


class PythonSource:
    """The configs of a Python file.

    Args:
        text: the file's text, which is parsed and never executed.
        file: its path.
        wrappers: see `Reader`.

    Raises:
        InputError: wrong syntax, or a file that is too long or too deep to be followed.
    """

    def __init__(self, text: str, file: str, wrappers: Sequence[str] = ()) -> None:
        self.file, self.lines = file, text.split("\n")
        if len(text) > MOST_BYTES:
            raise self._too_large(f"it has more than {MOST_BYTES:,} characters")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of odd escapes in texts, which are no errors
                tree = ast.parse(text)
            self._reader = partial(Reader, tree, wrappers)
            reader = self._reader()
            scope, self._steps = reader.scope, reader.steps
        except SyntaxError as error:
            place = self._line(error.lineno or 1, error.offset or 1)
            message, fix = f"invalid Python: {error.msg}", "correct the syntax"
            raise InputError.of("E875", message, place, fix) from None
        except ValueError:
            message, fix = "it contains a character that Python does not allow", "remove it"
            raise InputError.of("E875", message, Location(file), fix) from None
        except (RecursionError, MemoryError, TooLong):
            raise self._too_large("its expressions or calls are nested too deeply") from None
        functions = {name for name in scope if isinstance(scope[name], Function)}
        public = [name for name in scope if not name.startswith("_")]
        self.names = [
            *(
                name
                for name in public
                if name in functions and {*scope[name].parameters} <= scope[name].defaults.keys()
            ),
            *(name for name in public if isinstance(scope[name], Built)),
        ]
        """The public functions without required parameters, and the public variables."""

    def config(self, name: str | None, is_config: Callable[[Built], bool]) -> tuple[str, Built]:
        """Return the name and object of a config.

        Args:
            name: the function or variable; None if the file has one config.
            is_config: whether an object is a config.

        Raises:
            InputError: there is no such config, or several and no name (E875); another file
                determines it (E874).
        """
        if name is None:
            configs = [*self._configs(is_config)]
            if len(configs) == 1:
                return configs[0]
            raise self._choice([config for config, _ in configs])
        value = self._value(name)
        if isinstance(value, Built) and is_config(value):
            return name, value
        if (unknown := unknown_in(value)) and name in self.names:
            message = f"{name} is {unknown.text}, {unknown.reason}"
            fix = "import the file with that function, or write the config in this file"
            if not unknown.reason.endswith("another file"):
                fix = "write the config without it: with literals, assignments and plain calls"
            raise InputError.of("E874", message, Location(self.file), fix)
        names = [each for each, _ in self._configs(is_config)]
        message = f"{name} is no config of this file"
        fix = did_you_mean(name[:100], names) + self._choose(names)
        raise InputError.of("E875", message, Location(self.file), fix)

    def place(self, node: ast.AST) -> Location:
        """Return the position of an expression."""
        return self._line(getattr(node, "lineno", 1), getattr(node, "col_offset", 0) + 1)

    def _configs(self, is_config: Callable[[Built], bool]) -> Iterator[tuple[str, Built]]:
        for name in self.names:
            value = self._value(name)
            if isinstance(value, Built) and is_config(value):
                yield name, value

    def _value(self, name: str) -> object:
        try:
            # Calls of other configs may change what they share.
            reader = self._reader(steps=self._steps)
            value = reader.result(name)
            self._steps = reader.steps
        except (TooLong, RecursionError, MemoryError):
            raise self._too_large(f"{name} takes too many steps") from None
        if not is_small_tree(value):
            raise self._too_large(f"{name} contains itself, or too many objects")
        return value

    def _choice(self, configs: list[str]) -> InputError:
        message = f"{len(configs) or 'no'} configs" + (f": {_listed(configs)}" if configs else "")
        return InputError.of("E875", message, Location(self.file), self._choose(configs))

    def _choose(self, configs: list[str]) -> str:
        if not configs:
            return "import a file with a function that returns a config"
        return f"choose one: --config {configs[0]} (config= in Python)"

    def _line(self, number: int, column: int) -> Location:
        line = self.lines[number - 1] if number <= len(self.lines) else ""
        return Location(self.file, number, column, line[:200])

    def _too_large(self, message: str) -> InputError:
        fix = "import a shorter file with the config alone"
        return InputError.of("E879", message, Location(self.file), fix)


def _listed(names: list[str]) -> str:
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more:,} more" if more > 0 else "")
