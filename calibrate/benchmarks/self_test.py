"""The result of a self-test, apart from torch: `simtrain docs reference/json` describes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from simtrain.base.plain_data import PlainData, keys
from simtrain.views.kinds import TEXT
from simtrain.views.view import Column, Facts, Row, Table, Verdict, View


@dataclass(frozen=True, slots=True)
class Finding(PlainData):
    """One thing that was checked.

    Args:
        name: what was checked.
        measured: what it is here, in words.
        expected: what it should be, in words; "" if nothing says it.
        is_ok: whether it is as it should be; None if nothing says it.
        advice: what to do if it is not.
    """

    json_fields: ClassVar = keys("name measured expected ok=is_ok advice")

    name: str
    measured: str
    expected: str = ""
    is_ok: bool | None = None
    advice: str = ""

    @property
    def verdict(self) -> str:
        """The verdict in a word."""
        return {True: "ok", False: "OFF", None: ""}[self.is_ok]


@dataclass(frozen=True, slots=True)
class SelfTest(PlainData):
    """What was found on a machine.

    Args:
        device: name of the GPU or CPU.
        profile: the shipped profile of this device, from which times are expected; None without.
        findings: all that was checked, in order.
    """

    json_fields: ClassVar = keys("device profile findings ok")

    device: str
    profile: str | None
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing is off."""
        return all(finding.is_ok is not False for finding in self.findings)

    def view(self) -> View:
        """A row for each finding, what to do, and the verdict."""
        columns = [
            Column(name, name, TEXT) for name in ("check", "measured", "expected", "verdict")
        ]
        rows = [
            Row((finding.name, finding.measured, finding.expected, finding.verdict))
            for finding in self.findings
        ]
        of = f"times expected from {self.profile}" if self.profile else "no shipped profile of it"
        table = Table("findings", f"{self.device}: {of}", columns, rows)
        off = [finding for finding in self.findings if finding.is_ok is False]
        advice = [Facts([(finding.name, finding.advice) for finding in off])] if off else []
        names_off = ", ".join(finding.name for finding in off)
        words = f"off: {names_off}" if off else "ready to be measured"
        return View([table, *advice, Verdict(self.ok, words)])
