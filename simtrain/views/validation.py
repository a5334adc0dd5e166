"""Predictions beside measured runs: `simtrain validate`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from simtrain.studies.validation import RunDifference, ValidatedRun, Validation
from simtrain.units import counted
from simtrain.views.compare import setting_text
from simtrain.views.kinds import COUNT, NUMBER, SECONDS, SHARE, SIGNED_SHARE, TEXT, WHOLE_TEXT, Kind
from simtrain.views.view import (
    Column,
    Headline,
    Paragraphs,
    Row,
    Table,
    View,
    data_of,
    remarks,
    rows_of,
    verdict,
)

_WORST = 8
_MOST_REASONS = 12
_STATISTICS = (
    Column("figure", "", WHOLE_TEXT),
    Column("num", "runs", COUNT),
    Column("mean_abs_error", "mean |error|", SHARE, "of predicted / measured - 1"),
    Column("median_error", "median |error|", SHARE),
    Column("bias", "bias", SIGNED_SHARE, "the mean error; below zero if predictions are too low"),
    Column("p5", "5 %", SIGNED_SHARE, "5 % of the errors are below"),
    Column("p25", "25 %", SIGNED_SHARE, "25 % of the errors are below"),
    Column("p75", "75 %", SIGNED_SHARE, "75 % of the errors are below"),
    Column("p95", "95 %", SIGNED_SHARE, "95 % of the errors are below"),
    Column("within_10_percent", "within 10 %", SHARE, "the share of runs"),
    Column("worst_error", "worst", SIGNED_SHARE, "the error with the largest |error|"),
)
_ALL = (
    *("name", "model", "file", "line", "measured_s", "simulated_s", "error"),
    *("measured_peak_bytes", "simulated_peak_bytes", "peak_error"),
    *("ran", "fits", "refusal"),
)
_DO_NOT_FIT = (
    "Warning: most runs that ran are predicted not to fit, so they ran with settings that the "
    "source does not state, such as recompute."
)


def validation_view(validation: Validation) -> View:
    """Errors of times and peaks, the worst runs, and what was not simulated."""
    return View(
        [
            *([Paragraphs([_DO_NOT_FIT], style=None)] if validation.most_do_not_fit else []),
            _statistics(validation),
            _worst(validation),
            *(_differences(validation, each) for each in [validation.difference] if each),
            _refusals([row for row in validation.rows if row.refusal]),
            remarks(_remarks(validation)),
            _verdict(validation),
        ]
    )


def _statistics(validation: Validation) -> Table:
    times, peaks = validation.time_errors, validation.peak_errors
    rows = rows_of(
        _STATISTICS,
        [errors for errors in (times, peaks) if errors.num],
        figure=lambda errors: "iteration time" if errors is times else "peak memory",
    )
    title = f"Errors of predictions with {validation.cluster}"
    omitted = "p25", "p75", "median_error", "p5", "p95", "within_10_percent"
    return Table("errors", title, _STATISTICS, rows, optional=omitted)


def _worst(validation: Validation) -> Table:
    """The runs with the largest errors; in CSV, every run in the order of the sources."""
    columns = (
        Column("name", "run", TEXT),
        Column("model", "model", TEXT),
        Column("measured_s", "measured", SECONDS),
        Column("simulated_s", "simulated", SECONDS),
        Column("error", "error", SIGNED_SHARE, "of predicted / measured - 1"),
    )
    timed = [row for row in validation.rows if row.error is not None]
    worst = sorted(timed, key=lambda row: -abs(row.error or 0.0))
    rows, data = rows_of(columns, worst[:_WORST]), data_of(_ALL, validation.rows)
    return Table("runs", "The largest errors", columns, rows, optional=("model",), data=data)


def _differences(validation: Validation, difference: RunDifference) -> Table:
    """The settings that differ between two runs, and what each alone does to the first."""
    first, second = (row.name for row in validation.rows)
    value = Kind(setting_text, is_number=False)
    columns = (
        Column("field", f"A is {first}, B is {second}", TEXT),
        Column("first", "A", value),
        Column("second", "B", value),
        Column("change", "simulated", SIGNED_SHARE, "change of A's time with this of B alone"),
    )
    end = Row(("all of them", None, None, difference.simulated - 1))
    rows = rows_of(columns, difference.effects)
    return Table("differences", "What differs", columns, rows, end=end)


def _refusals(rows: Sequence[ValidatedRun]) -> Table:
    """Reasons why runs could not be simulated; in CSV, every run with its own."""
    groups: dict[str, list[ValidatedRun]] = {}
    for row in rows:
        groups.setdefault(re.sub(r"\d[\d,.]*", "N", row.refusal), []).append(row)
    most_first = sorted(groups.values(), key=lambda group: -len(group))
    columns = (
        Column("num", "runs", COUNT),
        Column("line", "first line", NUMBER),
        Column("refusal", "why it was not simulated", TEXT),
    )
    shown = [
        Row((len(group), group[0].line, group[0].refusal)) for group in most_first[:_MOST_REASONS]
    ]
    data = data_of(("file", "line", "refusal"), rows)
    return Table("refused", "Not simulated", columns, shown, data=data)


def _remarks(validation: Validation) -> Iterator[str]:
    yield "Error: predicted / measured - 1, below zero if the prediction is too fast or too small."
    if (coverage := validation.interval_coverage) is not None:
        yield (
            f"90 % intervals contain {coverage:.0%} of the measured times, 50 % intervals "
            f"{validation.half_interval_coverage or 0.0:.0%}."
        )
    ran, ran_and_fit, out_of_memory, does_not_fit = validation.fits.values()
    if ran:
        yield f"Of {counted(ran, 'run')} that ran, {ran_and_fit} are predicted to fit."
    if out_of_memory:
        yield (
            f"Of {counted(out_of_memory, 'run')} that ran out of memory, {does_not_fit} are "
            "predicted not to fit."
        )
    assumed: dict[str, int] = {}
    for row in validation.rows:
        for what in () if row.refusal else row.assumed:
            assumed[what] = assumed.get(what, 0) + 1
    for what, count in sorted(assumed.items(), key=lambda item: -item[1]):
        yield f"Assumed for {counted(count, 'run')}: {what}."


def _verdict(validation: Validation) -> Headline:
    if not validation.num_simulated:
        return verdict(False, validation.headline)
    doubt = "DOUBTFUL" if validation.most_do_not_fit else ""
    return verdict(validation.is_close, validation.headline, "FAR OFF", doubt)
