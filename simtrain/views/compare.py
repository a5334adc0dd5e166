"""Scenarios side by side, causes and sensitivity; changes of one scenario: `simtrain compare`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from simtrain.base.strict_yaml import as_scalar
from simtrain.hardware.evidence import sentences_of
from simtrain.hardware.upgrades import RESOURCES
from simtrain.iteration.report.breakdown import CAUSE_LABELS
from simtrain.iteration.report.difference import Difference
from simtrain.iteration.report.remarks import mfu_remarks
from simtrain.iteration.report.result import Result
from simtrain.studies.advice import Advice
from simtrain.studies.comparison import FACTOR, Comparison, ScenarioColumn, letter_of
from simtrain.units import counted, format_seconds, four_digits, gib
from simtrain.views.kinds import (
    BAR,
    BYTES,
    COUNT,
    FINE_SHARE,
    GIB,
    NUMBER,
    SECONDS,
    SHARE,
    SIGNED_SECONDS,
    SIGNED_SHARE,
    TEXT,
    Kind,
)
from simtrain.views.result import token_rate_label
from simtrain.views.view import (
    Cell,
    Column,
    Facts,
    Headline,
    Paragraphs,
    Part,
    Row,
    Table,
    View,
    data_of,
    remarks,
    rows_of,
    text_of,
)

_KEYS = 2
"""First columns, which a narrow terminal repeats: what a row is on, and the first scenario."""
_ROUNDING = 1e-12
"""Shares of the iteration time below this are rounding errors."""


def compare_view(comparison: Comparison) -> View:
    """Show the scenarios side by side, why they differ, and what better hardware would save."""
    scenarios, differences = comparison.scenarios, comparison.differences
    named = {letter_of(number): column for number, column in enumerate(scenarios)}
    parts: list[Part] = [*advice_view(comparison.advice).parts] if comparison.advice else []
    if comparison.advice is None:
        parts += [Facts([(letter, column.name) for letter, column in named.items()])]
        parts += [_side_by_side(named), _changed_fields(named)]
    for letter, difference in zip([*named][1:], differences, strict=True):
        parts += [_causes(letter, difference), Paragraphs(_sentences(letter, difference), None)]
    has_answer = differences or comparison.advice
    line = [Headline(comparison.headline)] if has_answer else []
    return View([*parts, _resources(named), remarks(_remarks(named)), *line])


def _side_by_side(named: dict[str, ScenarioColumn]) -> Table:
    """A row for each figure and a column for each scenario; in CSV, a row for each scenario."""
    columns, label = [*named.values()], token_rate_label([each.result for each in named.values()])
    figures = [
        Column("iteration_time_s", "iteration time", SECONDS),
        Column("mean_s", "mean of draws", SECONDS),
        Column("p95_s", "95 % take at most", SECONDS),
        Column("expected_s", "expected", SECONDS),
        Column("interval_s", "90 % interval", Kind(lambda interval: interval.ends)),
        Column("tokens_per_s", label, Kind("{:,.0f}".format)),
        Column("mfu", "MFU", SHARE),
        Column("peak_bytes", "peak memory", BYTES),
        Column("num_gpus", "GPUs", COUNT),
    ]
    if not any(column.drawn for column in columns):
        del figures[1:3]
    records = data_of(
        [figure.name for figure in figures],
        columns,
        expected_s=lambda column: column.result.interval.expected_s,
        mean_s=lambda column: column.drawn and column.drawn.time.mean,
        p95_s=lambda column: column.drawn and column.drawn.time.p95,
    )
    rows = []
    for figure in figures:
        values = [record[figure.name] for record in records]
        cells = (Cell(value, text_of(value, figure)) for value in values)
        rows.append(Row((figure.heading, *cells)))
    data = [
        {"letter": letter, "scenario": column.name} | record
        for (letter, column), record in zip(named.items(), records, strict=True)
    ]
    for record in data:
        del record["interval_s"], record["expected_s"]
    headings = [Column("", "", TEXT), *(Column("", name, NUMBER) for name in named)]
    return Table("scenarios", "Side by side", headings, rows, num_keys=_KEYS, data=data)


def _changed_fields(columns: dict[str, ScenarioColumn]) -> Table:
    values = _fields([column.result for column in columns.values()])
    headings = [Column(name, name, TEXT) for name in ("field", *columns)]
    rows = [Row((name, *texts)) for name, texts in values.items()]
    return Table("fields", "Fields that differ", headings, rows, num_keys=_KEYS)


def _fields(results: Sequence[Result]) -> dict[str, list[str]]:
    """Return the values of each field in which any scenario differs from the first."""
    first, *others = results
    changed = [Difference(first, other).changed_fields for other in others]
    values_of_first = {name: both[0] for fields in changed for name, both in fields.items()}
    return {
        name: [
            setting_text(value),
            *(setting_text(fields.get(name, (None, value))[1]) for fields in changed),
        ]
        for name, value in values_of_first.items()
    }


def setting_text(value: object) -> str:
    """Format the value of a field; a field that a scenario lacks has no text."""
    return "" if value is None else as_scalar(value)


def _causes(letter: str, difference: Difference) -> Table:
    base_s, other_s = difference.base.breakdown_s, difference.other.breakdown_s
    total_s, other_total_s = difference.base.iteration_time_s, difference.other.iteration_time_s
    rows = [
        Row(
            (
                CAUSE_LABELS[f"{name}_s"],
                _time(base_s[name], total_s),
                _time(other_s[name], other_total_s),
                *_change(cause_s, total_s),
            )
        )
        for name, cause_s in difference.causes_s.items()
        if max(base_s[name] / total_s, other_s[name] / other_total_s) >= _ROUNDING
    ]
    columns = (
        Column("cause", "cause", TEXT),
        Column("A_s", "A", SECONDS, "the mean over the stages"),
        Column(f"{letter}_s", letter, SECONDS, "the mean over the stages"),
        Column("difference_s", "difference", SIGNED_SECONDS),
        Column("share", "of A", SIGNED_SHARE, "of the first scenario's iteration time"),
    )
    change = _change(difference.difference_s, total_s)
    return Table(
        f"causes-{letter}",
        f"Why {letter} differs from A (mean over stages)",
        columns,
        rows,
        end=Row(("iteration", total_s, other_total_s, *change)),
        optional=("share",),
    )


def _time(seconds: float, total_s: float) -> float:
    return seconds if seconds >= _ROUNDING * total_s else 0.0


def _change(seconds: float, total_s: float) -> tuple[float | Cell, float | Cell]:
    """Return a change and its share of the total; rounding errors have no text."""
    if abs(seconds) < _ROUNDING * total_s:
        return Cell(0.0, ""), Cell(0.0, "")
    return seconds, seconds / total_s


def _sentences(letter: str, difference: Difference) -> list[str]:
    if not difference.changed_fields:
        return [f"{letter} and A are the same scenario."]
    sentences = [
        f"{letter} takes {difference.time} than A: {difference.causes} (percent of A's time)."
    ]
    ratio, per_token = difference.ratio, " per token" * (difference.tokens_ratio != 1)
    begin = "N" if ratio.can_be_told else f"{letter} and A cannot be told apart: n"
    sentences.append(f"{begin}ine times in ten {letter} takes {ratio.words} time{per_token}.")
    if not difference.has_same_model:
        sentences.append(f"{letter} and A train different models.")
    if difference.tokens_ratio != 1:
        speed = difference.other.tokens_per_s / difference.base.tokens_per_s
        sentences.append(
            f"An iteration of {letter} has {four_digits(difference.tokens_ratio)} times the tokens "
            f"of A, and {four_digits(speed)} times the tokens per second."
        )
    return sentences


def _resources(columns: dict[str, ScenarioColumn]) -> Table:
    sensitivities = [column.sensitivity for column in columns.values()]
    largest = max(max(sensitivities[0].saved.values()), 1e-9)
    rows = [
        Row(
            (
                RESOURCES[name].label,
                *(sensitivity.saved[name] for sensitivity in sensitivities),
                max(share, 0.0) / largest,
            )
        )
        for name, share in sensitivities[0].saved.items()
    ]
    headings = [
        Column("resource", f"{FACTOR - 1:.0%} better", TEXT),
        *(
            Column(name, f"{name} shorter", FINE_SHARE, "the share of its iteration that it saves")
            for name in columns
        ),
        Column("", "", BAR),
    ]
    title = "What to buy first, one resource at a time"
    return Table("resources", title, headings, rows, optional=("",), num_keys=_KEYS)


def _remarks(named: dict[str, ScenarioColumn]) -> Iterable[str]:
    yield (
        f"{FACTOR - 1:.0%} better: bandwidths, rates and memory times {FACTOR}; latencies and the "
        f"host's time per kernel divided by {FACTOR}. Each iteration is simulated again."
    )
    yield "More memory saves time only with recompute: auto, which is then chosen again."
    least = " or ".join(f"{column.least_told:.1%} ({name})" for name, column in named.items())
    yield f"A saving below {least} cannot be told from none."
    yield from mfu_remarks(column.result.scenario for column in named.values())
    for name, column in named.items():
        fit = column.result.memory.fit
        if column.result.anchors:
            yield f"{name}: {column.result.interval.basis}."
        if fit.doubt or not fit.fits_surely:
            yield f"{name}: {'; '.join(filter(None, (str(fit), fit.doubt)))}."
    yield from sentences_of(column.result.evidence for column in named.values())


_SIGNED_GIB = Kind(lambda num_bytes: f"{'+' if num_bytes >= 0 else '−'}{gib(abs(num_bytes))}")
_CHANGES = (
    Column("options", "change", TEXT),
    Column("iteration_time_s", "time", SECONDS),
    Column("saved", "saves", SHARE),
    Column("peak_bytes", "peak\nGiB", GIB),
    Column("more_bytes", "memory\nGiB", _SIGNED_GIB, "GiB more or less than without the change"),
)


def advice_view(advice: Advice) -> View:
    """Show the scenario as it is, and each change with its time and its price in memory."""
    fits = "" if advice.fits else ", which does not fit"
    facts = Facts(
        [
            ("scenario", str(advice.scenario)),
            ("iteration time", format_seconds(advice.iteration_time_s)),
            ("peak memory", f"{gib(advice.peak_bytes)} GiB{fits}"),
        ]
    )
    rows = rows_of(_CHANGES, advice.advised)
    tried = (
        f"{counted(advice.num_tried, 'change')} on the same GPUs, with the same global batch, were "
        f"simulated one at a time; {advice.num_too_large} of them do not fit."
    )
    words = [tried]
    if unsure := [each.options for each in advice.advised if not each.can_be_told]:
        words.insert(0, f"Cannot be told apart from the scenario: {'; '.join(unsure)}.")
    if not rows:
        words.insert(0, "No single change saves time.")
    return View([facts, Table("changes", "", _CHANGES, rows), remarks(words)])
