"""Read tables of measured runs (CSV), one run a line."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from simtrain.base.resources import list_profiles, list_stacks
from simtrain.base.strict_yaml import YamlDocument, apply_overrides, read_text
from simtrain.base.strict_yaml.document import Place, Positions
from simtrain.base.strict_yaml.model_fields import settable_names
from simtrain.errors import InputError, Location, did_you_mean
from simtrain.importing.required_fields import missing_fields
from simtrain.importing.runs import columns
from simtrain.importing.runs.arguments import import_arguments
from simtrain.importing.runs.columns import (
    COLUMN_OF,
    NOT_PRINTED,
    Fields,
    Measurement,
    UnreadableCell,
    spelled,
    without_remark,
)
from simtrain.importing.runs.model_facts import gated_facts, model_facts
from simtrain.scenario import Model, Scenario
from simtrain.scenario.releases import SEPARATOR, latest_until, split_reference
from simtrain.scenario.software import (
    DEFAULT_STACK,
    load_stack,
    releases_of,
    stack_of_framework,
)
from simtrain.scenario.words import spell_out_words
from simtrain.studies.validation.measured import (
    MeasuredRun,
    PeakOf,
    RunSettings,
    in_one_line,
    wrong_peak,
    wrong_time,
)

_MOST_BYTES = 64 << 20
_REQUIRED = tuple(missing_fields({}, Model, "model."))
_SIZES = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "context_parallel_size",
)
_RANKS = tuple(f"parallelism.{axis}" for axis in ("tensor", "context", "pipeline"))
_GATED = ("swiglu", "geglu")
_RECIPE_OF: dict[str, Fields] = {"torchao": {"precision.fp8_recipe": "tensorwise"}}
"""What a library of fp8 does unless told otherwise, if it is not what scenarios do."""
_LORA = re.compile(r"\blora\b", re.IGNORECASE)
_RELEASE = re.compile(r"(?<![\w.])v?(\d{1,4}(?:\.\d{1,4}){1,3})(?![\w.])")
"""A number of a release, such as 26.06.01, and no part of a name or of a commit."""
_FINE_TUNING = re.compile(r"\bsft\b", re.IGNORECASE)
_HAS_EXPERTS = re.compile(
    r"\bmoe|experts|\d ?x ?\d+(?:\.\d+)? ?b|(?<![a-z])a\d+(?:\.\d+)? ?b"
    r"|gpt[-_ ]?oss|mixtral|deepseek[-_ ]?v[23]",
    re.IGNORECASE,
)
"""Names of models with experts, such as "Qwen3 30B-A3B" and "8x7B"."""
_SCHEDULE = re.compile(r"\bschedule=(?P<name>[\w-]+)")
_ADAPTERS = re.compile(r"\b(?P<number>\d{1,2}) ?x ?(?P<gbits>\d{2,4}) ?Gb(?:it)?(?:/s|ps)?\b")
_USUAL_GB = {
    "a100": (80,),
    "h100": (80,),
    "h200": (141,),
    "h800": (80,),
    "h20": (96,),
    "gh200": (96,),
    "b200": (180, 192),
    "b300": (270, 279, 288),
    "gb200": (186, 189, 192),
    "gb300": (279, 284, 288),
    "mi300": (192,),
}
"""Memory of the form of a GPU that the shipped profile describes, as vendors print it."""


class _RefusedRow(Exception):
    """A row that cannot be simulated; the message says why."""


def read_table(file: Path, settings: RunSettings) -> TableRuns:
    """Read the cells of a table.

    Args:
        file: a CSV file whose first line names its columns (`columns.RUN_COLUMNS`).
        settings: what the command line says about all runs.

    Raises:
        InputError: the file cannot be read, is empty, or lacks a column (E891).
    """
    return TableRuns(_Table.of(file, read_text(file, _MOST_BYTES)), settings)


@dataclass(frozen=True)
class TableRuns:
    """The rows of a table as runs, each made when it is reached: a long table has many scenarios.

    A row that cannot be simulated says why.
    """

    _table: _Table
    _settings: RunSettings

    def __len__(self) -> int:
        return len(self._table.rows)

    def __iter__(self) -> Iterator[MeasuredRun]:
        seen: dict[tuple[str, ...], int] = {}
        for number, cells in self._table.rows:
            yield self._table.run(number, cells, self._settings, seen)


@dataclass(frozen=True)
class _Table:
    """The cells of a table.

    Args:
        file: its file.
        headings: names of the columns, spelled as `columns.spelled` does.
        rows: the line of each row, and its cells.
    """

    file: Path
    headings: Sequence[str]
    rows: Sequence[tuple[int, list[str]]]

    @cached_property
    def unread(self) -> list[str]:
        """The columns that are not read; with arguments, no other column of settings is."""
        known = {*columns.KNOWN} if not {*columns.ARGUMENTS} & {*self.headings} else columns.OTHERS
        return [name for name in self.headings if name and name not in known and "." not in name]

    @cached_property
    def distinctions(self) -> Mapping[int, str]:
        """Say by line which column that is not read tells a run from one that is simulated alike.

        Only words count: numbers and dates of such columns are measured, or differ in any run.
        Arguments of Megatron-LM say all.
        """
        if {*columns.ARGUMENTS} & {*self.headings}:
            return {}
        alike: dict[tuple[str, ...], list[tuple[int, dict[str, str]]]] = {}
        left_out = {*self.unread, *columns.NAMES, *columns.MEASURED}
        for line, cells in self.rows:
            row = {name: cell.strip() for name, cell in zip(self.headings, cells, strict=False)}
            key = tuple(cell for name, cell in row.items() if name not in left_out)
            alike.setdefault(key, []).append((line, row))
        distinctions: dict[int, str] = {}
        for rows in alike.values():
            for name in self.unread:
                words = {row.get(name, "") for _, row in rows}
                if len(words - {""}) > 1 and all(map(_is_words, words - {""})):
                    distinctions |= {line: name for line, row in rows if row.get(name)}
        return distinctions

    @classmethod
    def of(cls, file: Path, text: str) -> _Table:
        """Split a text into cells, and check that the columns can describe a run."""
        # A comment has no comma: "# GPUs,..." is a heading.
        comments = re.match(r"(?:[ \t]*(?:#[^,\n]*)?\n)*", text)
        num_comments = comments[0].count("\n") if comments else 0
        # A quote that is never closed is an error, not one cell with the rest of the file.
        lines = csv.reader(io.StringIO(text[comments.end() if comments else 0 :]), strict=True)
        try:
            headings = [spelled(heading) for heading in next(lines, [])]
            rows = [
                (lines.line_num + num_comments, cells)
                for cells in lines
                if any(map(str.strip, cells))
            ]
        except csv.Error as error:
            place = Location(str(file), lines.line_num + num_comments)
            fix = "close the quote that is open there, and keep cells below 131,072 characters"
            raise InputError.of("E891", f"the table is broken: {error}", place, fix) from None
        place = Location(str(file), 1 + num_comments, 1, ",".join(headings))
        if not rows:
            fix = "write a line of column names, and a line for each run"
            raise InputError.of("E891", "the table has no runs", place, fix)
        if repeated := sorted({name for name in headings if name and headings.count(name) > 1}):
            fix = "give each column another name"
            raise InputError.of("E891", f"columns are repeated: {', '.join(repeated)}", place, fix)
        _check_columns(headings, place)
        return cls(file, headings, rows)

    def run(
        self,
        line: int,
        cells: list[str],
        settings: RunSettings,
        seen: dict[tuple[str, ...], int],
    ) -> MeasuredRun:
        """Read a row; `seen` has the lines of earlier rows by their cells."""
        row = _Row({name: cell.strip() for name, cell in zip(self.headings, cells, strict=False)})
        name = row.first(columns.NAMES) or f"line {line}"
        run = MeasuredRun(name, row.first(columns.MODELS), str(self.file), line)
        try:
            if len(cells) > len(self.headings):
                raise _RefusedRow(f"{len(cells)} cells for {len(self.headings)} columns")
            self._check_alone(line, row, seen)
            row.check_hardware(settings.cluster)
            row.check_weights(settings.overrides)
            return self._measured(run, row, settings)
        except _RefusedRow as refused:
            return replace(run, refusal=str(refused))
        except InputError as error:
            return replace(run, refusal=in_one_line(error))

    def _check_alone(self, line: int, row: _Row, seen: dict[tuple[str, ...], int]) -> None:
        """Refuse a row that an earlier one equals, or that differs from one in an unread word."""
        key = tuple(cell for title, cell in row.cells.items() if title not in columns.NAMES)
        if key in seen:
            raise _RefusedRow(f"the same as line {seen[key]}")
        seen[key] = line
        if column := self.distinctions.get(line):
            raise _RefusedRow(
                f"{column} is {row.cells[column]}, which is not read, and rows with another "
                f"{column} would be simulated alike: write the field that it stands for as a "
                "column, such as schedule, or remove the column if it does not matter"
            )

    def _measured(self, run: MeasuredRun, row: _Row, settings: RunSettings) -> MeasuredRun:
        """Add the scenario of a row and its measurements to what names it."""
        location = Location(run.file, run.line)
        scenario, assumed, stated = row.scenario(run.model, settings, location)
        if self.unread:
            unread = ", ".join(self.unread)
            assumed.append(f"these columns, which are not read, do not matter: {unread}")
        peak_bytes, peak_of, peak_column = row.measured(columns.PEAKS)
        time_s, _, time_column = row.measured(columns.TIMES)
        rate = row.number(columns.TOKENS_PER_S_PER_GPU)
        if time_s is None and rate is not None:
            tokens = scenario.batch.global_ * scenario.model.seq_length
            time_s = tokens / (rate * scenario.num_gpus)
            time_column = row.title(columns.TOKENS_PER_S_PER_GPU)
        measured = replace(
            run,
            scenario=scenario,
            iteration_time_s=time_s,
            peak_bytes=peak_bytes,
            peak_of=peak_of,
            time_column=time_column,
            peak_column=peak_column,
            ran=row.first(columns.OUTCOMES).lower() not in columns.OUT_OF_MEMORY,
            assumed=assumed,
            stated=stated,
            parameters_billion=row.number(columns.PARAMETERS),
        )
        _check_measured(measured)
        return measured


def _is_words(cell: str) -> bool:
    """Whether a cell says something in words: no number, date, version or number of a run."""
    return bool(re.fullmatch(r"[A-Za-z][^0-9]*(?:[-_ ]?[0-9]{1,3})?", cell))


def _check_measured(run: MeasuredRun) -> None:
    """Refuse a time or a peak that no run can have, and a row without either."""
    if run.iteration_time_s is not None and (why := wrong_time(run.iteration_time_s)):
        raise _RefusedRow(f"{run.time_column}: {why}; correct it, or the unit of the column")
    if run.peak_bytes is not None and (why := wrong_peak(run.peak_bytes)):
        raise _RefusedRow(f"{run.peak_column}: {why}; correct it, or the unit of the column")
    if run.ran and run.iteration_time_s is None and run.peak_bytes is None:
        raise _RefusedRow("neither a time nor a peak was measured")


def _check_columns(headings: Sequence[str], place: Location) -> None:
    """Refuse a table whose columns cannot describe a run, and dotted names of no field."""
    fields = settable_names(Scenario)
    unknown = [name for name in headings if "." in name and name not in fields]
    if unknown:
        fix = f"{did_you_mean(unknown[0], fields)}write the name of a field, or remove the column"
        raise InputError.of("E891", f"{unknown[0]} is no field of a scenario", place, fix)
    measured = {name for kind in (*columns.TIMES, *columns.PEAKS) for name in kind.names}
    measured |= {*columns.TOKENS_PER_S_PER_GPU, *columns.OUTCOMES}
    wanted = {"a measured time or peak, such as iteration_time_s": measured}
    if not {*columns.ARGUMENTS} & {*headings}:
        for field in _REQUIRED:
            column = next(column for column in columns.RUN_COLUMNS if field in _fields_of(column))
            names = column.names
            wanted[f"{field}, such as {names[0]}"] = {field, *names}
        wanted["batch.global, such as global_batch"] = {
            *("batch.global", "global_batch", "global_batch_size", "gbs"),
            *columns.MICROBATCHES,
        }
    missing = [what for what, names in wanted.items() if not names & {*headings}]
    if missing:
        message = f"the table has no column for {'; none for '.join(missing)}"
        fix = "add the column, or give an existing one its name"
        raise InputError.of("E891", message, place, fix)


def _fields_of(column: columns.RunColumn) -> set[str]:
    try:
        return {*column.fields("1")}
    except UnreadableCell:
        return set()


@dataclass(frozen=True)
class _Row:
    """The cells of a row by the names of their columns."""

    cells: Mapping[str, str]

    def first(self, names: Sequence[str]) -> str:
        """Return the first cell with text in columns of these names; "" if none has any."""
        return self.cells.get(self.title(names), "")

    def title(self, names: Sequence[str]) -> str:
        """Return the first column of these names with text; "" if none has any."""
        return next((name for name in names if self.cells.get(name)), "")

    def number(self, names: Sequence[str]) -> float | None:
        """Read the number above 0 in a column of these names."""
        for name in names:
            if text := self.cells.get(name):
                number: float = _read(name, text, columns.positive)
                return number
        return None

    def measured(self, kinds: Sequence[Measurement]) -> tuple[float | None, PeakOf, str]:
        """Return a figure in seconds or bytes, what it is of, and its column; None if not measured.

        The first kind with a value counts.
        """
        for kind in kinds:
            if (number := self.number(kind.names)) is not None:
                return number * kind.factor, kind.of, self.title(kind.names)
        return None, PeakOf.GPU, ""

    def check_hardware(self, cluster: str) -> None:
        """Refuse a row of another machine than the profile's."""
        if machine := self.first(columns.HARDWARE):
            profile = profile_named(machine)
            # Who has a profile of their own knows which machine it is of.
            if cluster in list_profiles() and profile != cluster:
                which = f"whose profile is {profile}" if profile else "of which there is no profile"
                raise _RefusedRow(f"measured on {machine}, {which}")

    def check_weights(self, overrides: Sequence[str]) -> None:
        """Refuse a row that trains adapters, unless a column or an override has their rank.

        Text that names both LoRA and SFT describes a table of both kinds of runs, not the row.
        """
        if any(name.startswith("model.lora") for name in (*overrides, *self.cells)):
            return
        for text in map(self.cells.get, (*columns.SOURCES, *columns.NOTES)):
            if text and _LORA.search(text) and not _FINE_TUNING.search(text):
                raise _RefusedRow(
                    "trains adapters alone (LoRA) of an unknown rank: add a column "
                    "model.lora.rank, or --set model.lora.rank=16"
                )

    def scenario(
        self, model: str, settings: RunSettings, location: Location
    ) -> tuple[Scenario, list[str], Collection[str] | None]:
        """Return the row as a scenario, what was assumed, and the fields that are stated.

        The fields are None if the row has all arguments of a run.
        """
        if arguments := self.first(columns.ARGUMENTS):
            return *self._from_arguments(arguments, settings), None
        fields, assumed = self._fields(model)
        stated = {*fields, *(override.partition("=")[0] for override in settings.overrides)}
        if settings.software or self.stack:
            stated.add("software.stack")
        if not {"parallelism", "parallelism.data"} & stated:
            raise _RefusedRow(
                "the number of GPUs is not printed: add a column gpus, or dp (replicas), or --set "
                "parallelism.data=8"
            )
        self._add_software(fields, settings, assumed)
        document = _document(fields, location)
        for assignment in (f"cluster={settings.cluster}", *settings.overrides):
            document = apply_overrides(spell_out_words(document), [assignment])
        return Scenario.from_document(spell_out_words(document)), assumed, stated

    @property
    def stack(self) -> str | None:
        """The software stack of the framework that the row names."""
        return stack_of_framework(f"{self.first(columns.FRAMEWORKS)} {self.first(columns.NOTES)}")

    def _as_of_release(self, stack: str, assumed: list[str]) -> str:
        """Return the stack as of the release that the row names; as written if it names none.

        A release has a column, or stands in the cell of the framework or the source, such as
        "Megatron-Bridge docs/performance-summary.md [26.06, Pre-Training Performance]".
        """
        name, release = split_reference(stack)
        known = releases_of(name) if name in list_stacks() else ()
        if release or not known:
            return stack
        cells = (self.cells.get(title, "") for title in (*columns.FRAMEWORKS, *columns.SOURCES))
        texts = [text for text in cells if stack_of_framework(text) == name]
        texts.insert(0, self.first(columns.RELEASES))
        numbers = [dict.fromkeys(_RELEASE.findall(text)) for text in texts]
        written = next((number for number in numbers if number), None)
        if written is None or len(written) > 1:
            return stack
        (release,) = written
        if latest_until(release, known) is None:
            assumed.append(f"release {release} of {name}, which is unknown: the newest one")
            return stack
        return f"{name}{SEPARATOR}{release}"

    def _add_software(self, fields: Fields, settings: RunSettings, assumed: list[str]) -> None:
        """Add the software stack: --software, the framework that the row names, the usual one."""
        if settings.software:
            fields.setdefault("software.stack", settings.software)
        if written := fields.get("software.stack"):
            fields["software.stack"] = self._as_of_release(written, assumed)
        if any(override.startswith("software") for override in settings.overrides):
            return
        stack = self.stack or settings.usual_software
        if stack and "software.stack" not in fields:
            fields["software.stack"] = stack = self._as_of_release(stack, assumed)
            of = f" of {self.first(columns.FRAMEWORKS)}" if self.stack else ""
            assumed.append(f"software{of}: {stack}, which --software changes")
        if fields.get("precision.compute") == "fp8" and "precision.fp8_recipe" not in fields:
            library = load_stack(fields.get("software.stack", DEFAULT_STACK)).fp8_library.value
            fields |= _RECIPE_OF.get(library, {})

    def _from_arguments(self, text: str, settings: RunSettings) -> tuple[Scenario, list[str]]:
        """Import Megatron-LM's arguments; the table has the number of GPUs."""
        try:
            arguments = json.loads(text)
        except (ValueError, RecursionError) as error:  # also integers of thousands of digits
            raise _RefusedRow(f"args_json is not JSON: {error}") from None
        if not isinstance(arguments, dict):
            raise _RefusedRow("args_json must be an object of arguments")
        words = " ".join(_option(str(name), value) for name, value in arguments.items())
        overrides = settings.assignments
        if gpus := self.first(columns.GPUS):
            values = {name.replace("-", "_"): value for name, value in arguments.items()}
            ranks = math.prod(
                _read(name, str(values.get(name, 1)), columns.integer) for name in _SIZES
            )
            data, rest = divmod(_read("gpus", gpus, columns.integer), ranks)
            if rest or not data:
                raise _RefusedRow(f"{gpus} GPUs are not a multiple of {ranks} ranks of a replica")
            overrides = [f"parallelism.data={data}", *overrides]
        return import_arguments(words, overrides)

    def _fields(self, model: str) -> tuple[Fields, list[str]]:
        """Return the fields that the row sets, and what was assumed."""
        fields, assumed = Fields(), list[str]()
        for name, text in self.cells.items():
            if not text or NOT_PRINTED.search(text):
                continue
            if "." in name:
                fields[name] = _yaml_value(name, text)
            elif column := COLUMN_OF.get(name):
                cell = text if column.reads_remark else without_remark(text)
                fields |= _read(name, cell, column.fields)
        fields = self._switches() | fields
        self._add_model(fields, model, assumed)
        self._add_vocabulary(fields, assumed)
        self._add_remarks(fields)
        self._add_ranks(fields)
        self._add_batch(fields)
        _add_layout(fields, assumed)
        for name in (*_REQUIRED, "batch.global"):
            if name not in fields:
                raise _RefusedRow(f"{name} is not printed")
        if "model.vocab_size" not in fields:
            assumed.append("the vocabulary is not printed: simtrain's default")
        return fields, assumed

    def _switches(self) -> Fields:
        """Return what the notes say of settings.

        Switches, such as "ub_tp_comm_overlap on"; the adapters of a node, such as "4x100Gb RoCE";
        and the schedule, such as "schedule=1F1B".
        """
        fields = Fields()
        for notes in filter(None, map(self.cells.get, columns.NOTES)):
            if adapters := _ADAPTERS.search(notes):
                fields["hardware.inter_node.num_adapters"] = int(adapters["number"])
                fields["hardware.inter_node.adapter_bandwidth"] = f"{adapters['gbits']} Gb/s"
            if schedule := _SCHEDULE.search(notes):
                fields |= _read("schedule", schedule["name"], COLUMN_OF["schedule"].fields)
            for name, value in re.findall(r"\b([a-z_]{4,40}) (on|off)\b", notes):
                column = COLUMN_OF.get(name)
                if column and column.is_switch:
                    fields |= column.fields(value)
        return fields

    def _add_model(self, fields: Fields, model: str, assumed: list[str]) -> None:
        """Add what the table does not say of the model."""
        gated = self.first(columns.GATED)
        is_gated = _read("gated_mlp", gated, columns.switch) if gated else None
        facts, of = model_facts(model)
        if not of and is_gated:
            facts, of = gated_facts()
        for name, value in facts.items():
            fields.setdefault(f"model.{name}", value)
        has_experts = any(name.startswith("model.experts") for name in fields)
        if _HAS_EXPERTS.search(model) and not has_experts:
            raise _RefusedRow(
                f"{model} has experts, but the table does not say how many: add columns "
                "model.experts.num, model.experts.top_k and model.experts.ffn_hidden_size"
            )
        if experts := fields.get("model.experts"):
            experts = fields["model.experts"] = dict(experts)
        if experts and not experts.get("first_dense_layers") and "model.ffn_hidden_size" in fields:
            # Without dense layers, the width that a table prints is that of an expert; but some
            # print the width of dense layers, which configurations have even if the model has none.
            width = fields.pop("model.ffn_hidden_size")
            known = experts.setdefault("ffn_hidden_size", width)
            if known != width:
                assumed.append(f"experts are {known} wide as in {of}, not {width} as printed")
        if of:
            assumed.append(f"what the table does not say of {model or 'the model'}: as {of}")
        activation = fields.get("model.activation", "gelu")
        if is_gated is not None and is_gated != (activation in _GATED):
            fields["model.activation"] = "swiglu" if is_gated else "gelu"

    def _add_vocabulary(self, fields: Fields, assumed: list[str]) -> None:
        """Add what a split vocabulary needs: its runtime refuses tied embeddings (E454)."""
        is_split = fields.get("parallelism.vocabulary", "first_last") != "first_last"
        if is_split and "model.tied_embeddings" not in fields:
            fields["model.tied_embeddings"] = False
            assumed.append("embeddings are not tied, because stages split the vocabulary")

    def _add_remarks(self, fields: Fields) -> None:
        """Add what words of the notes say of the run."""
        notes = " ".join(filter(None, map(self.cells.get, columns.NOTES)))
        for remark in columns.REMARKS:
            if not remark.pattern.search(notes):
                continue
            if remark.refusal:
                raise _RefusedRow(remark.refusal)
            if remark.needs and fields.get(remark.needs, 1) == 1:
                continue
            for name, value in remark.fields.items():
                _set_default(fields, name, value)

    def _add_ranks(self, fields: Fields) -> None:
        """Add the number of replicas, or check it against the number of GPUs."""
        gpus = self.first(columns.GPUS)
        if not gpus:
            return
        count = _read("gpus", gpus, columns.integer)
        ranks = math.prod(fields.get(name, 1) for name in _RANKS)
        data = fields.setdefault("parallelism.data", count // ranks)
        if data * ranks != count:
            product = f"tensor x context x pipeline x data is {data * ranks}"
            raise _RefusedRow(f"{count} GPUs, but {product}")

    def _add_batch(self, fields: Fields) -> None:
        """Add the microbatch, and the global batch of a number of microbatches."""
        micro = fields.setdefault("batch.micro", 1)
        if "batch.global" not in fields and (text := self.first(columns.MICROBATCHES)):
            number = _read("microbatches", text, columns.integer)
            fields["batch.global"] = number * micro * fields.get("parallelism.data", 1)


def _set_default(fields: Fields, name: str, value: Any) -> None:
    """Set a field unless it is set; `model.experts` may be there as one object."""
    section, _, last = name.rpartition(".")
    if isinstance(inside := fields.get(section), dict):
        inside.setdefault(last, value)
    else:
        fields.setdefault(name, value)


def _add_layout(fields: Fields, assumed: list[str]) -> None:
    """Count embedding and loss as layers if only so the layers divide over the chunks."""
    chunks = fields.get("parallelism.pipeline", 1) * fields.get("parallelism.interleave", 1)
    layers = fields.get("model.num_layers", 0)
    share, rest = divmod(layers + 2, chunks)
    if chunks < 2 or layers % chunks == 0 or rest:
        return
    sizes = [share - 1, *[share] * (chunks - 2), share - 1]
    fields["parallelism.layout"] = "|".join(
        "E" * (chunk == 0) + "t" * size + "L" * (chunk == chunks - 1)
        for chunk, size in enumerate(sizes)
    )
    assumed.append("embedding and loss count as a layer each, because the layers do not divide")


def _read(name: str, text: str, read: Any) -> Any:
    """Read a cell, and say which one is unreadable."""
    try:
        return read(text)
    except UnreadableCell as error:
        raise _RefusedRow(f'{name} is "{text}", but {error}') from None


def _yaml_value(name: str, text: str) -> Any:
    """Return the value of a cell as YAML has it, as --set reads it."""
    value: Any = apply_overrides(YamlDocument({}, Positions()), [f"{name}={text}"]).data
    for part in name.split("."):
        value = value[part]
    return value


def _document(fields: Fields, location: Location) -> YamlDocument:
    """Return fields as the document of a scenario, all at one place."""
    data: dict[str, Any] = {}
    places: dict[tuple[str | int, ...], Place] = {}
    for name, value in fields.items():
        *sections, last = path = name.split(".")
        inside = data
        for section in sections:
            inside = inside.setdefault(section, {})
        inside[last] = value
        for depth in range(1, len(path) + 1):
            places[tuple(path[:depth])] = Place(location, location)
    return YamlDocument(data, Positions(places))


def _option(name: str, value: Any) -> str:
    """Return an argument as a command line has it; "true" is a flag alone."""
    text = str(value).strip()
    flag = f"--{name.lstrip('-')}"
    return flag if text.lower() == "true" else f"{flag} {' '.join(map(shlex.quote, text.split()))}"


def profile_named(machine: str) -> str | None:
    """Return the shipped profile of a machine such as "h100-sxm" or "A100 80GB"; None if none is.

    Both must be of the same GPU, in the same form, with the GPU's usual memory unless both name
    another size.
    """
    of_machine = {*_machine_words(machine.lower())}
    for profile in list_profiles():
        if of_machine == {*_machine_words(profile.replace("_", " "))}:
            return profile
    return None


def _machine_words(text: str) -> Iterator[str]:
    """Yield what tells machines apart: the GPU, an unusual size of its memory, its form."""
    gpu = re.search(r"g[bh]\d{3}|[abhlv]\d{2,3}|mi\d{3}|trn\d", text)
    if gpu is None:
        return
    yield gpu[0]
    memory = re.search(r"\b(\d{2,3}) ?gi?b?\b", text)
    if memory and int(memory[1]) not in _USUAL_GB.get(gpu[0], ()):
        yield memory[1]
    if form := re.search(r"pcie|nvl(?!\d)", text):
        yield form[0]
