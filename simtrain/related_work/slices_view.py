"""Slices of token-level pipelines: `simtrain schedule slices`."""

from __future__ import annotations

from simtrain.related_work.slices import SliceSearch, Slicing
from simtrain.units import format_seconds
from simtrain.views.kinds import GIB, SECONDS, SIGNED_SHARE, TEXT
from simtrain.views.view import Column, Facts, Row, Table, View, remarks


def slices_view(search: SliceSearch) -> View:
    """Show the lengths that were found, and the iteration with these and with other slices."""
    lengths = ", ".join(map(str, search.slicing.lengths))
    rows = [
        ("schedule", search.schedule),
        ("slices found", f"{len(search.slicing.lengths)}: {lengths}"),
        ("pipeline, by the programme", format_seconds(search.predicted_s)),
    ]
    if len(search.sizes) > 1:
        rows.append(("sequences of a microbatch", str(search.micro)))
    if {each.sequences for each in search.mix} != {search.micro}:
        rows.append(("with mixed microbatches", format_seconds(search.mix_predicted_s)))
        rows.append(("their sizes", ", ".join(str(each.sequences) for each in search.mix)))
    facts = Facts(rows)
    columns = [
        Column("name", "slices", TEXT),
        Column("iteration_time_s", "iteration", SECONDS),
        Column("change", "to found", SIGNED_SHARE),
        Column("peak_bytes", "peak\nGiB", GIB),
    ]
    slicings = (search.slicing, *search.others)
    ranked = sorted(slicings, key=lambda slicing: slicing.iteration_time_s)
    table = Table(
        "slices", "The fastest first", columns, [_row(slicing, search) for slicing in ranked]
    )
    write = f"--set schedule={search.schedule} --set 'parallelism.slice_lengths=[{lengths}]'"
    number = f"--set parallelism.sequence_slices={len(search.slicing.lengths)}"
    micro = f" --set batch.micro={search.micro}" if len(search.sizes) > 1 else ""
    words = f"{write} {number}{micro}"
    note = f"Slices have multiples of 1/{search.parts} of the sequence. Write: {words}"
    return View([facts, table, remarks([note])])


def _row(slicing: Slicing, search: SliceSearch) -> Row:
    change = slicing.iteration_time_s / search.slicing.iteration_time_s - 1
    return Row((slicing.name, slicing.iteration_time_s, change, slicing.peak_bytes))
