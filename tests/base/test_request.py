"""Tests of simtrain.base.request."""

from __future__ import annotations

import inspect
from dataclasses import dataclass

import pytest

from simtrain.base.request import takes


@dataclass(frozen=True)
class CakeRequest:
    """A cake.

    Args:
        flour_g: flour,
            in grams: not too much.
        sugar, salt: what
            it takes.

    Raises:
        ValueError: never.
    """

    flour_g: int
    sugar: str = "brown"
    salt: str = "none"


@takes(CakeRequest)
def bake(request: CakeRequest) -> str:
    """Bake a cake.

    Raises:
        OSError: the oven is cold.
    """
    return f"{request.flour_g} {request.sugar} {request.salt}"


def test_callers_give_fields() -> None:
    assert bake(200, salt="a pinch") == "200 brown a pinch"
    with pytest.raises(TypeError, match="butter"):
        bake(200, butter=1)  # type: ignore[call-arg]


def test_the_signature_is_that_of_the_request() -> None:
    signature = inspect.signature(bake)
    assert list(signature.parameters) == ["flour_g", "sugar", "salt"]
    assert signature.return_annotation == "str"


def test_the_docstring_describes_the_fields_before_the_errors() -> None:
    text = inspect.getdoc(bake)
    assert text is not None
    assert text.startswith("Bake a cake.\n\nArgs:\n    flour_g: flour,\n")
    assert text.endswith("it takes.\n\nRaises:\n    OSError: the oven is cold.")
