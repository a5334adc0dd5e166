"""Errors of fitted profiles against their data, as `python -m calibrate fit` prints them."""

import functools
import multiprocessing
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager

from calibrate.fit.published import fit_figures
from calibrate.fit.result import Fit
from docs.update.documents import ROOT
from docs.update.request import Request, percent, table
from simtrain.base.accuracy import ErrorTable

PROFILES = ("a100_sxm4_80gb", "h100_sxm", "h200_sxm", "b200_sxm")
DOCUMENT = "docs/validation_details.md"
"""The document that quotes the errors."""
NOT_FITTED, CURVES = "(not fitted)", "inside a node"
"""Ends of titles."""
_BACKGROUND: dict[str, Future[Fit]] = {}


def _fit(profile: str) -> Fit:
    return fit_figures(ROOT / f"calibrate/published/{profile}.yaml")


@functools.cache
def fitted(profile: str) -> Fit:
    """Fit a shipped profile to its published figures. Cached."""
    return _BACKGROUND[profile].result() if profile in _BACKGROUND else _fit(profile)


@contextmanager
def fits_in_background() -> Iterator[None]:
    """Fit all profiles in two processes, which takes ten seconds of a processor."""
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        _BACKGROUND.update({profile: pool.submit(_fit, profile) for profile in PROFILES})
        yield


def comparisons(profile: str) -> dict[str, ErrorTable]:
    """Return the comparisons of a fit with its data, by title."""
    return {one.title: one for one in fitted(profile).residuals}


def fit_errors(request: Request) -> str:
    """Return a table of all errors: `fit_errors PROFILE ...`, with a column for each profile.

    The table omits curves of collectives, because they interpolate their data.
    """
    columns = [comparisons(profile) for profile in request.words]
    titles = {title: None for one in columns for title in one if not title.endswith(CURVES)}
    rows = [
        [title.replace("_", "-"), *(_cell(one.get(title)) for one in columns)]
        for title in sorted(titles, key=lambda title: title.endswith(NOT_FITTED))
    ]
    return table(["part", *(f"`{profile}`" for profile in request.words)], rows)


def _cell(one: ErrorTable | None) -> str:
    if one is None:
        return ""
    return f"{percent(one.mean_abs_error)}, {percent(one.max_abs_error)} ({len(one.rows)})"
