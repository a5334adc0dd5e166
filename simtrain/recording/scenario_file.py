"""The scenario of a recording."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from simtrain.base.strict_yaml import Positions, YamlDocument, apply_overrides, yaml_text
from simtrain.scenario.words import spell_out_words

CLUSTER, SOFTWARE = "h100_sxm", "torchtitan"
"""Defaults: torchtitan's software stack is PyTorch without a compiler."""


def scenario_text(recording: str, command: str, overrides: Iterable[str]) -> str:
    """Return the file of a scenario that runs a recording.

    Args:
        recording: name of the recording, which is in the same folder.
        command: the command that recorded it.
        overrides: assignments of fields, such as "cluster=b200_sxm".

    Raises:
        InputError: an assignment is malformed.
    """
    data: dict[str, Any] = {"program": recording, "cluster": CLUSTER, "software": SOFTWARE}
    document = YamlDocument(data, Positions())
    for override in overrides:
        document = apply_overrides(spell_out_words(document), [override])
    return f"# Recorded by: {' '.join(command.split())}\n{yaml_text(document.data)}"
