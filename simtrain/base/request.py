"""Requests: what a study is asked for, as one value that Python, JSON and command lines share.

A request is a frozen dataclass whose docstring describes its fields under `Args:`. A study takes
the request; who calls it gives the fields:

    @takes(SearchRequest)
    def search(request: SearchRequest) -> SearchResult: ...

    search(scenario, gpus=8, top=3)

Descriptions and defaults are said once, in the request: `help(search)`, the signature that editors
show, and the options of the command follow from it.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from functools import update_wrapper
from textwrap import dedent
from typing import ParamSpec, TypeVar

Fields = ParamSpec("Fields")
Request = TypeVar("Request")
Answer = TypeVar("Answer")

_ARGS = re.compile(r"^Args:\n(?P<fields>(?:[ ]{4,}.*\n?|\n)*)", re.MULTILINE)
_FIELD = re.compile(r"^(?P<names>\w+(?:, \w+)*): (?P<text>.*(?:\n(?:[ ]{4,}.*|$))*)", re.MULTILINE)


def takes(
    request: Callable[Fields, Request],
) -> Callable[[Callable[[Request], Answer]], Callable[Fields, Answer]]:
    """Let callers of a function give the fields of its request in place of the request.

    The function gets the signature of the request, and the descriptions of its fields as `Args:`.
    """

    def of_fields(study: Callable[[Request], Answer]) -> Callable[Fields, Answer]:
        """Return the function of the fields."""

        def with_fields(*args: Fields.args, **fields: Fields.kwargs) -> Answer:
            return study(request(*args, **fields))

        update_wrapper(with_fields, study)
        described = _ARGS.search(inspect.getdoc(request) or "")
        if described and study.__doc__:
            summary, end, rest = inspect.cleandoc(study.__doc__).partition("\nRaises:")
            with_fields.__doc__ = f"{summary.rstrip()}\n\n{described[0].rstrip()}\n{end}{rest}"
        signature = inspect.signature(request)
        answer = inspect.signature(study).return_annotation
        with_fields.__signature__ = signature.replace(return_annotation=answer)  # type: ignore[attr-defined]
        return with_fields

    return of_fields


def described_in(docstring: str) -> dict[str, str]:
    """Return what a docstring says under `Args:` of each name, each as one line."""
    described = _ARGS.search(docstring)
    text_of: dict[str, str] = {}
    for field in _FIELD.finditer(dedent(described["fields"]) if described else ""):
        text = " ".join(field["text"].split())
        text_of |= dict.fromkeys(field["names"].split(", "), text)
    return text_of


def without_descriptions(docstring: str) -> str:
    """Return a docstring without `Args:` and what stands under it."""
    return _ARGS.sub("", docstring).strip()
