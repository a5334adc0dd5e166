"""What a node of a cluster must have to compute parts of a sweep, and how it comes by it.

Nodes need simtrain itself. What the sweep starts from is in the plan; profiles are sent along, as
their files may lie on one machine alone, or differ from one to the next.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

from simtrain.errors import InputError, Problem
from simtrain.hardware.load import give_profile
from simtrain.resources import find_profile
from simtrain.sweep.plan import Plan, versions

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Needs:
    """Versions that a node must have, by program, and profiles that it is given, by name."""

    versions: Mapping[str, str]
    profiles: Mapping[str, str]


def needs_of(plan: Plan) -> Needs:
    """What the parts of a plan need, read on the machine that has the files."""
    texts = {name: find_profile(name).read_text(encoding="utf-8") for name in plan.profiles}
    return Needs(plan.versions, texts)


def on_node(needs: Needs, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function on a node of a cluster.

    Raises:
        InputError: the node has other versions, whose parts would not be the same bytes.
    """
    if (here := versions()) != needs.versions:
        has, wanted = (_words(one) for one in (here, needs.versions))
        message = f"a node of the cluster has {has}; this machine has {wanted}"
        fix = "install the same versions on every node"
        raise InputError([Problem("E853", message, fix=fix)])
    for name, text in needs.profiles.items():
        give_profile(name, text)
    return fn(*args, **kwargs)


def _words(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())
