"""`simtrain search`: the best layout on a cluster, or the best cluster for a whole training."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from simtrain.base.resources import list_profiles
from simtrain.commands.cost import read_goodput
from simtrain.commands.declare import Fields, Option, options_first
from simtrain.commands.group import MISSED
from simtrain.commands.options import OutOption, refuse
from simtrain.commands.output import PAGES, Output, check_file, show
from simtrain.commands.question import Question, SearchQuestion, read_measured
from simtrain.studies.search.request import SearchRequest

if TYPE_CHECKING:
    from simtrain.scenario import Scenario
    from simtrain.studies.planning import TrainingPlan
    from simtrain.studies.search.run import SearchResult


def _gpus(written: list[str], _: str) -> tuple[int, ...]:
    from simtrain.studies.planning import read_gpus

    return read_gpus(",".join(written))


def _names(text: str, _: str) -> list[str]:
    return [name.strip() for name in text.split(",")]


_GPUS_HELP = "Number of GPUs; with --tokens also several: 256,512, or 128..4096."
_GOODPUT_HELP = "With --tokens: share of the time spent in iterations, or auto. Default: 1."
SearchFields = Annotated[
    dict[str, Any],
    Fields(
        SearchRequest,
        "gpus top seconds days budget goodput price",
        {
            "gpus": Option(help=_GPUS_HELP, parse=_gpus, is_repeated=True),
            "top": Option(min=1),
            "budget": Option(metavar="PRICE"),
            "goodput": Option(help=_GOODPUT_HELP, metavar="SHARE", parse=read_goodput),
            "price": Option(help="With --tokens: as for cost."),
        },
    ),
]
_CLUSTERS = Option("--cluster", complete=list_profiles, parse=_names)
_OF_TRAINING = ("days", "budget", "goodput", "price")


@options_first("scenario gpus tokens days budget clusters vary hold overrides top out details")
def search(
    question: SearchQuestion,
    fields: SearchFields,
    output: Output,
    out: OutOption = None,
    tokens: str | None = None,
    clusters: Annotated[list[str] | None, _CLUSTERS] = None,
    measured: list[str] | None = None,
    *,
    vary: Annotated[list[str] | None, Option(metavar="FIELD[=VALUES]")] = None,
    hold: Annotated[list[str] | None, Option(metavar="FIELD")] = None,
    details: bool = False,
) -> None:
    """Find the fastest layout on N GPUs, or clusters and numbers of GPUs to train on.

    Args:
        out: a page (.html); or a folder for a scenario file per layout; replaces no file.
        tokens: search clusters and numbers of GPUs for a training of so many: 300B, 1.5T, 450e9.
        clusters: with --tokens: hardware profiles, a100_sxm4_80gb,h100_sxm. Default: the scenario's
            cluster.
        measured: runs of yours, as simtrain run takes them: layouts are ranked by expected time.
        vary: search these values of a layout's field: batch.micro=1,2, or all schedules: schedule.
            May be repeated.
        hold: keep the scenario's value of a field or a section: overlap. May be repeated.
        details: also print what was searched, and what prices rest on.

    The search covers every legal combination of tensor, pipeline and data parallelism, interleave,
    schedule, microbatch, recompute, sequence parallelism and ZeRO stage. For models with experts it
    adds expert parallelism, with expert_tensor of 1 or equal to tensor; for long sequences, context
    parallelism. Then options of overlap, memory and recompute of the two best layouts are changed
    one at a time. A field set by --set or named by --hold keeps its value; --vary searches others.
    Fields that are not of a layout are compared by simtrain sweep.

    Ranked are layouts that surely fit. Faster ones that may not fit follow below, marked with *.

    With --tokens, it searches the fastest layout for each cluster and number of GPUs, computes
    days, price and energy like simtrain cost, and marks the fastest and the cheapest row that meet
    --days and --budget. If a number of GPUs needs more nodes than a cluster has, nodes are added.

    Exits with 0 and a ranking, also if --seconds or Ctrl-C ended the search: the last line says how
    close to the optimum the best layout is. Exits with 3 if nothing fits, with 2 if nothing is
    legal, with 4 if no row meets the limits.

    With experts: simtrain search mixtral_8x7b --gpus 64 --vary parallelism.expert=2,4,8

    Example: simtrain search table5_22b_present --gpus 8 --top 5 --seconds 30

    Example: simtrain search gpt3_175b --tokens 300B --days 60 --gpus 256..1024
    """
    from simtrain.commands.printing import first_interrupt, progress_bar
    from simtrain.studies.planning import search as study
    from simtrain.studies.search.run import files_of_ranks

    if tokens is None:
        fields = _fields_of_layouts(fields, clusters, vary or [], hold or [])
    else:
        fields = _fields_of_training(fields, tokens, clusters, {"--vary": vary, "--hold": hold})
    if clusters:
        question = question.changed([f"cluster={clusters[0]}"])
    base = _base(question, fields["gpus"])
    is_page = out is not None and (tokens is not None or out.suffix in PAGES)
    if out is not None and is_page:
        check_file(out)
    elif out is not None:
        files_of_ranks(out, base, fields["top"])
    fields["anchors"] = read_measured(measured, base, question.changes.overrides)
    with progress_bar() as on_progress, first_interrupt() as interrupted:
        answer = study(base, **fields, interrupted=interrupted, on_progress=on_progress)
    _show(answer, output, details, out, is_page)


def _fields_of_layouts(
    fields: dict[str, Any], clusters: list[str] | None, vary: list[str], hold: list[str]
) -> dict[str, Any]:
    """Return the fields of a search for layouts; refuse those of a whole training (E908)."""
    from simtrain.studies.search.space import read_vary

    of_training = _written({name: fields.pop(name) for name in _OF_TRAINING})
    refuse(of_training | {"--cluster": clusters}, "is for a whole training", "add --tokens 300B")
    return fields | {"vary": read_vary(vary), "hold": hold, "refines": True}


def _fields_of_training(
    fields: dict[str, Any],
    tokens: str,
    clusters: list[str] | None,
    of_layouts: Mapping[str, object],
) -> dict[str, Any]:
    """Return the fields of a search for clusters; refuse those that only layouts have (E908)."""
    top = _written({"top": fields.pop("top")})
    refuse({**top, **of_layouts}, "has no effect with --tokens")
    return fields | {"tokens": tokens, "clusters": clusters or ()}


def _written(fields: Mapping[str, Any]) -> dict[str, bool]:
    defaults = {field.name: field.default for field in dataclasses.fields(SearchRequest)}
    return {f"--{name}": value != defaults[name] for name, value in fields.items()}


def _base(question: Question, gpus: Sequence[int]) -> Scenario:
    from simtrain.studies.changes import with_scaled_batch

    base = question.load_unchecked()
    if not question.changes.scale_batch:
        return base
    refuse({"--scale-batch": len(gpus) > 1}, "is for one number of GPUs", "write --gpus N")
    return with_scaled_batch(base, *gpus)


def _show(
    answer: SearchResult | TrainingPlan,
    output: Output,
    details: bool,
    out: Path | None,
    is_page: bool,
) -> None:
    """Print an answer, and write its page or a scenario per layout."""
    from simtrain.render.html.document import write_document
    from simtrain.render.html.pages import study_document
    from simtrain.studies.planning import TrainingPlan
    from simtrain.studies.search.run import SearchResult, write_scenarios

    data = answer.to_dict()
    if isinstance(answer, SearchResult) and out is not None and not is_page:
        for row, file in zip(data["ranked"], write_scenarios(answer, out), strict=False):
            row["file"] = str(file)
        data["best"] = data["ranked"][0]
    show(output, data, partial(answer.view, details=details), answer.made_on)
    if out is not None and is_page:
        write_document(study_document(answer.view(details=True)), out)
    if isinstance(answer, TrainingPlan) and answer.fastest is None:
        raise SystemExit(MISSED)
