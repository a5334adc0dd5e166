"""The parser: it reads the words after a command by the options that the command declares."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from simtrain.commands.declare import CliOption, CliOptions
from simtrain.commands.help import first_example
from simtrain.commands.usage import former_command, unknown_option
from simtrain.errors import InputError, Location, did_you_mean


class Parser:
    """The words of a call of a command.

    Args:
        path: the words that name the command, such as "simtrain run".
        function: what it calls.
        words: those after the path.

    A wrong word is an InputError: no option of the command (E902), or one too many (E906). An
    option or argument may be missing (E903), twice (E905), or have an impossible value (E904), or
    none, or one too many (E907).
    """

    def __init__(self, path: str, function: Callable[..., None], words: Sequence[str]) -> None:
        self.path, self.function, self.words = path, function, words
        self.tree = CliOptions.of(function)
        self.options = self.tree.in_order

    def call(self) -> None:
        """Call the command with the values."""
        self.tree.value(self.values())

    def values(self) -> dict[str, Any]:
        """Return the values of all options and arguments by the names of their parameters."""
        texts: dict[str, list[str]] = {}
        for option, name, text in self._texts():
            if not text:
                message = 'is empty; write a value (for a path, "." is the current folder)'
                raise self._refused("E904", name, message)
            if option.key in texts and not option.is_list:
                raise self._refused("E905", name, "is given twice", "keep one")
            texts.setdefault(option.key, []).append(text)
        return {each.key: self._value(each, texts.get(each.key)) for each in self.options}

    def _texts(self) -> Iterator[tuple[CliOption, str, str]]:
        """Yield each option with its name and text as written; the text of a flag is its name."""
        named = {name: each for each in self.options for name in each.names}
        arguments = (each for each in self.options if each.is_argument)
        argument, words, has_ended = next(arguments, None), iter(self.words), False
        for word in words:
            if has_ended or word == "-" or not word.startswith("-"):
                if argument is None:
                    raise self._too_many(word)
                yield argument, argument.label, word
                argument = argument if argument.is_list else next(arguments, None)
            elif word == "--":
                has_ended = True
            else:
                name, text = _split(word)
                option = named.get(name)
                if option is None:
                    raise unknown_option(self.path, name, named, self._example)
                if option.is_flag and text is not None:
                    raise self._refused("E907", name, f"Option '{name}' does not take a value")
                text = name if option.is_flag else next(words, None) if text is None else text
                if text is None:
                    raise self._refused("E907", name, f"Option '{name}' requires an argument")
                yield option, name, text

    def _value(self, option: CliOption, texts: list[str] | None) -> Any:
        name = option.names[0]
        if texts is None and option.is_required:
            kind = "argument" if option.is_argument else "option"
            raise self._refused("E903", name, f"Missing {kind} '{name}'")
        try:
            return option.default if texts is None else option.read(texts)
        except ValueError as error:
            message = f"Invalid value for '{name}': {error}"
            similar = did_you_mean(texts[-1], option.choices) if texts else ""
            raise self._refused("E904", name, message, similar.rstrip()) from None

    def _too_many(self, word: str) -> InputError:
        """Return the error of an argument for which there is no place."""
        message, fix = f"Got unexpected extra argument ({word})", ""
        if "--set" in self.words:
            fix = f"a field and its value are one word: --set FIELD={word}; otherwise remove it"
        former = former_command(self.path, self.words[0])
        return former or InputError.of("E906", message, Location(self.path), fix or self._example)

    def _refused(self, code: str, name: str, message: str, fix: str = "") -> InputError:
        return InputError.of(code, message, Location(f"{self.path} {name}"), fix or self._example)

    @property
    def _example(self) -> str:
        """The fix of other errors."""
        return first_example(self.path, self.function)


def _split(word: str) -> tuple[str, str | None]:
    """Split "--name=text" or "-otext"; without a text it is None."""
    name, equals, text = word.partition("=") if word[:2] == "--" else (word[:2], word[2:], word[2:])
    return name, text if equals else None
