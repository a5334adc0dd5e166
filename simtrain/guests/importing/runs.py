"""Compare measured iterations with simulated ones: tables of runs in CSV, logs of Megatron-LM.

`runs.toml` has the names of the columns. A cell without text was not printed, and a remark in
parentheses after a value is left out.
"""

from __future__ import annotations

import csv
import functools
import io
import math
import re
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from simtrain.base.importer import MOST_BYTES_OF_LOG, ImportRequest
from simtrain.base.output_folder import as_path
from simtrain.base.request import takes
from simtrain.base.resources import find_profile, list_profiles, list_scenarios
from simtrain.base.strict_yaml import (
    Positions,
    YamlDocument,
    apply_overrides,
    data_of,
    parse_value,
    read_text,
)
from simtrain.base.strict_yaml.reading import Place
from simtrain.base.values import dataclass, replace
from simtrain.errors import InputError, Location
from simtrain.guests.importing.draft import missing_fields
from simtrain.guests.importing.gpus import profile_named
from simtrain.guests.importing.megatron.arguments import NOT_MODELLED
from simtrain.guests.importing.megatron.fields import draft_of
from simtrain.guests.importing.megatron.source import prints_arguments, read_source
from simtrain.guests.importing.table import WordsFile
from simtrain.hardware.evidence import usual_stack
from simtrain.scenario import Model, Scenario
from simtrain.scenario.check import check_overrides, load_unchecked
from simtrain.scenario.parallelism import MOST_LETTERS
from simtrain.scenario.section import spell_out_words
from simtrain.scenario.software import DEFAULT_STACK, load_stack, stack_of_framework
from simtrain.studies.requests import ValidationRequest
from simtrain.studies.validation import (
    MeasuredRun,
    PeakOf,
    Runs,
    RunSettings,
    Validation,
    in_one_line,
    validate_runs,
    wrong_peak,
    wrong_time,
)

Fields = dict[str, Any]
"""Values by the fields of a scenario."""

# ------------------------------------------------------------------------------------------ columns

ALIASES: dict[str, Any] = WordsFile(Path(__file__).with_suffix(".toml")).rows
KINDS = ("counts", "switches", "words", "texts")
COLUMN_OF: dict[str, tuple[str, str]] = {
    name: (kind, what) for kind in KINDS for what, names in ALIASES[kind].items() for name in names
}
"""By the name of a column, its kind and the field that it sets."""
TEXTS: dict[str, list[str]] = ALIASES["texts"]
_SECONDS: dict[str, float] = ALIASES["seconds"]
_BYTES: dict[str, float] = ALIASES["bytes"]
_MEASURED = frozenset((*_SECONDS, *_BYTES, *TEXTS["tokens_per_s_per_gpu"], *TEXTS["outcome"]))
_PEAK_OF = {
    "mem_max_allocated_bytes": PeakOf.LAST_STAGE,
    "max_allocated_bytes": PeakOf.TENSORS,
    "max_memory_allocated": PeakOf.TENSORS,
}
"""What the columns of peaks are of that are not of all memory in use."""
_NOT_PRINTED = re.compile(r"not printed|recipe default", re.IGNORECASE)
_OUT_OF_MEMORY: list[str] = ALIASES["values"]["out_of_memory"]
_SWITCHES = {text: name == "on" for name in ("on", "off") for text in ALIASES["values"][name]}


class RefusedRow(Exception):
    """A row that cannot be simulated; the message says why."""


def _spelled(heading: str) -> str:
    """Return a heading as the names of columns are spelled: "# GPUs" is gpus."""
    if "." in heading and " " not in heading.strip():
        return heading.strip()
    return re.sub(r"[^a-z0-9]+", "_", heading.lower()).strip("_")


def _refused(name: str, text: str, says: str) -> RefusedRow:
    return RefusedRow(f'{name} is "{text}", but {says}')


def _positive(name: str, text: str) -> float:
    try:
        number = float(text.replace(",", ""))
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise _refused(name, text, "must be a number above 0")
    return number


def _count(name: str, text: str) -> int:
    """Read a whole number from 1: "64", "8,192", "8.0"."""
    try:
        number = _positive(name, text)
    except RefusedRow:
        number = 0.0
    if number < 1 or number != int(number):
        raise _refused(name, text, "must be a whole number from 1")
    return int(number)


def _switch(name: str, text: str) -> bool:
    if text.lower() not in _SWITCHES:
        raise _refused(name, text, "must be true or false")
    return _SWITCHES[text.lower()]


def _stage(name: str, text: str) -> int:
    """Read a ZeRO stage: "none", "1", "3 (FSDP2)"."""
    stage = text.replace("none", "0")
    if stage not in ("0", "1", "2", "3"):
        raise _refused(name, text, "must be a stage from 0 to 3")
    return int(stage)


def _fields_of(name: str, text: str) -> Fields:
    """Return the fields that a cell sets; none for columns that the row itself reads."""
    kind, field = COLUMN_OF[name]
    plain = re.sub(r"\s*\([^()]*\)\s*$", "", text).strip()
    match kind:
        case "texts" if field == "memory.zero_stage":
            return {field: _stage(name, plain)}
        case "texts":
            return {field: plain} if field == "software.stack" else {}
        case "counts":
            return {field: _count(name, plain)}
        case "switches":
            value: bool | str = _switch(name, plain)
            word = str(value).lower()
        case _:
            word = plain.lower()
            value = word.replace("-", "_")
            if not re.fullmatch(r"[\w-]+", word):
                raise _refused(name, text, "must be one word")
    meant: Fields | None = ALIASES["meanings"].get(field, {}).get(word)
    return meant or {field: value}


# ----------------------------------------------------------------------------- models by their name

_SIZES: list[str] = ALIASES["values"]["sizes"]
"""Fields in which models of one family differ."""


def _model_facts(name: str) -> tuple[Mapping[str, Any], str]:
    """Return fields of `model`, and which shipped model they are of; nothing for unknown names.

    "Llama-3.1 70B proxy" has all fields of llama3_70b. "Llama2-34B" has those of another llama that
    do not depend on its size, such as the activation.
    """
    spelled = [_letters(name), _letters(re.sub(r"(\d)\.\d+", r"\1", name))]
    shipped = [each for each in list_scenarios() if not each.startswith(("table", "dp530b"))]
    exact = [each for each in shipped if any(text.startswith(_letters(each)) for text in spelled)]
    if exact:
        best = max(exact, key=len)
        return _shipped_model(best), best
    family = re.match(r"[a-z]+", spelled[0])
    of = next((each for each in shipped if family and re.match(rf"{family[0]}[\d_]", each)), "")
    fields = _shipped_model(of) if of else {}
    return {field: value for field, value in fields.items() if field not in _SIZES}, of


@functools.cache
def _shipped_model(name: str) -> Mapping[str, Any]:
    fields: Mapping[str, Any] = data_of(load_unchecked(name).model, only_set=True)
    return fields


def _letters(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


# -------------------------------------------------------------------------------------------- rows

_REQUIRED = (*missing_fields({}, Model, "model."), "batch.global")
_RANKS = tuple(f"parallelism.{axis}" for axis in ("tensor", "context", "pipeline"))
_RECIPE_OF: dict[str, Fields] = {"torchao": {"precision.fp8_recipe": "tensorwise"}}
"""What a library of fp8 does unless told otherwise, if it is not what scenarios do."""
_HAS_EXPERTS = re.compile(
    r"\bmoe|experts|\d ?x ?\d+(?:\.\d+)? ?b|(?<![a-z])a\d+(?:\.\d+)? ?b"
    r"|gpt[-_ ]?oss|mixtral|deepseek[-_ ]?v[23]",
    re.IGNORECASE,
)
"""Names of models with experts, such as "Qwen3 30B-A3B" and "8x7B"."""


@dataclass(frozen=True)
class _Row:
    """The cells of a row by the names of their columns, and what is assumed about the run."""

    cells: Mapping[str, str]
    settings: RunSettings
    assumed: list[str]

    def text(self, what: str) -> str:
        """Return the first cell with text in the columns of a text; "" if none has any."""
        return next(filter(None, map(self.cells.get, TEXTS[what])), "")

    def number(self, names: Iterable[str]) -> tuple[float, str] | None:
        """Read the first number above 0 in columns of these names, and say in which one it is."""
        name = next((name for name in names if self.cells.get(name)), None)
        return (_positive(name, self.cells[name]), name) if name else None

    def scenario(self, model: str, location: Location) -> Scenario:
        cluster, overrides = self.settings.cluster, self.settings.overrides
        profile = profile_named(machine) if (machine := self.text("hardware")) else cluster
        # Who has a profile of their own knows which machine it is of.
        if cluster in list_profiles() and profile != cluster:
            which = f"whose profile is {profile}" if profile else "of which there is no profile"
            raise RefusedRow(f"measured on {machine}, {which}")
        fields = self._fields(model)
        overridden = {override.partition("=")[0] for override in overrides}
        if not {"parallelism", "parallelism.data"} & {*fields, *overridden}:
            raise RefusedRow(
                "the number of GPUs is not printed: add a column gpus, or dp (replicas), or --set "
                "parallelism.data=8"
            )
        self._add_software(fields)
        document = _document(fields, location)
        for assignment in (f"cluster={cluster}", *overrides):
            document = apply_overrides(spell_out_words(document), [assignment])
        return Scenario.from_document(spell_out_words(document))

    def _fields(self, model: str) -> Fields:
        fields = Fields()
        for name, text in self.cells.items():
            if not text or _NOT_PRINTED.search(text):
                continue
            if name in ALIASES["counts"]:
                fields[name] = _count(name, text)
            elif "." in name:
                fields[name] = parse_value(text, Location(f"--set {name}={text}"))
            elif name in COLUMN_OF:
                fields |= _fields_of(name, text)
        self._add_model(fields, model)
        if gpus := self.text("gpus"):
            count, ranks = _count("gpus", gpus), math.prod(fields.get(name, 1) for name in _RANKS)
            data = fields.setdefault("parallelism.data", count // ranks)
            if data * ranks != count:
                product = f"tensor x context x pipeline x data is {data * ranks}"
                raise RefusedRow(f"{count} GPUs, but {product}")
        micro = fields.setdefault("batch.micro", 1)
        if "batch.global" not in fields and (text := self.text("microbatches")):
            replicas = fields.get("parallelism.data", 1)
            fields["batch.global"] = _count("microbatches", text) * micro * replicas
        self._add_layout(fields)
        if missing := next((name for name in _REQUIRED if name not in fields), None):
            raise RefusedRow(f"{missing} is not printed")
        if "model.vocab_size" not in fields:
            self.assumed.append("the vocabulary is not printed: simtrain's default")
        return fields

    def _add_model(self, fields: Fields, model: str) -> None:
        """Add what the table does not say of the model."""
        facts, of = _model_facts(model)
        for name, value in facts.items():
            fields.setdefault(f"model.{name}", value)
        has_experts = any(name.startswith("model.experts") for name in fields)
        if _HAS_EXPERTS.search(model) and not has_experts:
            raise RefusedRow(
                f"{model} has experts, but the table does not say how many: add columns "
                "model.experts.num, model.experts.top_k and model.experts.ffn_hidden_size"
            )
        if isinstance(experts := fields.get("model.experts"), dict):
            experts = fields["model.experts"] = dict(experts)
            # Without dense layers, the width that a table prints is that of an expert; but some
            # print that of dense layers, which configurations have even if the model has none.
            if not experts.get("first_dense_layers") and "model.ffn_hidden_size" in fields:
                width = fields.pop("model.ffn_hidden_size")
                known = experts.setdefault("ffn_hidden_size", width)
                if known != width:
                    text = f"experts are {known} wide as in {of}, not {width} as printed"
                    self.assumed.append(text)
        if of:
            self.assumed.append(f"what the table does not say of {model}: as {of}")

    def _add_layout(self, fields: Fields) -> None:
        """Lay out layers that do not divide: as frameworks do, or as Bridge's DeepSeek-V3."""
        chunks = fields.get("parallelism.pipeline", 1) * fields.get("parallelism.interleave", 1)
        layers = fields.get("model.num_layers", 0)
        if "parallelism.layout" in fields or chunks < 2 or layers % chunks == 0:
            return
        counted = (layers + 2) % chunks == 0
        share = math.ceil((layers + 2 * counted) / chunks)
        first, last = share - counted, layers - share * (chunks - 1) + counted
        if last < 1 - counted or layers + chunks > MOST_LETTERS:  # the scenario says what is wrong
            return
        how = "embedding and loss count as a layer each" if counted else "the last chunk is short"
        self.assumed.append(f"{how}, because the layers do not divide")
        predicted = fields.get("model.mtp_num_layers", 0)
        loss = "m" * (predicted if isinstance(predicted, int) and predicted < layers else 0) + "L"
        middle = ["t" * share] * (chunks - 2)
        fields["parallelism.layout"] = "|".join(["E" + "t" * first, *middle, "t" * last + loss])

    def _add_software(self, fields: Fields) -> None:
        """Add the software stack: --software, the framework that the row names, the usual one."""
        settings = self.settings
        if settings.software:
            fields.setdefault("software.stack", settings.software)
        if any(override.startswith("software") for override in settings.overrides):
            return
        named = stack_of_framework(self.text("framework").lower())
        stack = named or settings.usual_software
        if stack and "software.stack" not in fields:
            fields["software.stack"] = stack
            of = f" of {self.text('framework')}" if named else ""
            self.assumed.append(f"software{of}: {stack}, which --software changes")
        if fields.get("precision.compute") == "fp8" and "precision.fp8_recipe" not in fields:
            library = load_stack(fields.get("software.stack", DEFAULT_STACK)).facts["fp8_library"]
            fields |= _RECIPE_OF.get(library, {})


def _document(fields: Fields, location: Location) -> YamlDocument:
    """Return fields as the document of a scenario, all at one place."""
    data: dict[str, Any] = {}
    # A section of the shipped model comes before the fields of it that the row has.
    for name, value in sorted(fields.items(), key=lambda field: field[0].count(".")):
        *sections, last = name.split(".")
        inside = data
        for section in sections:
            inside = inside.setdefault(section, {})
        inside[last] = dict(value) if isinstance(value, Mapping) else value
    return YamlDocument(data, Positions({(): Place(location, location)}))


# ------------------------------------------------------------------------------------------ tables

_MOST_BYTES = 64 << 20


@dataclass(frozen=True)
class _Table(Runs):
    """The rows of a table as runs, each made when it is reached: a long table has many scenarios.

    Args:
        file: its file.
        headings: the names of the columns.
        rows: the line of each row, and its cells.
        settings: what the command line says about all runs.
    """

    file: Path
    headings: Sequence[str]
    rows: Sequence[tuple[int, list[str]]]
    settings: RunSettings

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[MeasuredRun]:
        seen: dict[tuple[str, ...], int] = {}
        for line, cells in self.rows:
            yield self._run(line, cells, seen)

    @cached_property
    def _unread(self) -> list[str]:
        read = COLUMN_OF.keys() | _MEASURED
        return [name for name in self.headings if name and name not in read and "." not in name]

    def _run(self, line: int, cells: list[str], seen: dict[tuple[str, ...], int]) -> MeasuredRun:
        """Read a row; `seen` has the lines of earlier rows by their cells."""
        texts = {name: cell.strip() for name, cell in zip(self.headings, cells, strict=False)}
        row = _Row(texts, self.settings, [])
        name = row.text("name") or f"line {line}"
        run = MeasuredRun(name, row.text("model"), str(self.file), line)
        try:
            if len(cells) > len(self.headings):
                raise RefusedRow(f"{len(cells)} cells for {len(self.headings)} columns")
            key = tuple(cell for title, cell in texts.items() if title not in TEXTS["name"])
            if (first := seen.setdefault(key, line)) != line:
                raise RefusedRow(f"the same as line {first}")
            return self._measured(run, row)
        except RefusedRow as refused:
            return replace(run, refusal=str(refused))
        except InputError as error:
            return replace(run, refusal=in_one_line(error))

    def _measured(self, run: MeasuredRun, row: _Row) -> MeasuredRun:
        """Add the scenario of a row and its measurements to what names it."""
        scenario = row.scenario(run.model, Location(run.file, run.line))
        if self._unread:
            text = f"these columns, which are not read, do not matter: {', '.join(self._unread)}"
            row.assumed.append(text)
        time_s = peak_bytes = None
        peak_of, wrong = PeakOf.GPU, ""
        if number := row.number(_SECONDS):
            time_s = number[0] * _SECONDS[number[1]]
        elif number := row.number(TEXTS["tokens_per_s_per_gpu"]):
            tokens = scenario.batch.global_ * scenario.model.seq_length
            time_s = tokens / (number[0] * scenario.num_gpus)
        if number and time_s is not None and (why := wrong_time(time_s)):
            wrong = f"{number[1]}: {why}"
        if number := row.number(_BYTES):
            peak_bytes, peak_of = number[0] * _BYTES[number[1]], _PEAK_OF.get(number[1], peak_of)
            if why := wrong_peak(peak_bytes):
                wrong = wrong or f"{number[1]}: {why}"
        if wrong:
            raise RefusedRow(f"{wrong}; correct it, or the unit of the column")
        ran = row.text("outcome").lower() not in _OUT_OF_MEMORY
        if ran and time_s is None and peak_bytes is None:
            raise RefusedRow("neither a time nor a peak was measured")
        return replace(
            run,
            scenario=scenario,
            iteration_time_s=time_s,
            peak_bytes=peak_bytes,
            peak_of=peak_of,
            ran=ran,
            assumed=row.assumed,
        )


def _read_table(file: Path, settings: RunSettings) -> _Table:
    """Read the cells of a CSV file, whose first line names its columns.

    Raises:
        InputError: the file cannot be read, is empty, or repeats a column (E891).
    """
    text = read_text(file, _MOST_BYTES)
    # A comment has no comma: "# GPUs,..." is a heading.
    comments = re.match(r"(?:[ \t]*(?:#[^,\n]*)?\n)*", text)
    start = comments.end() if comments else 0
    skipped = text.count("\n", 0, start)
    # A quote that is never closed is an error, not one cell with the rest of the file.
    lines = csv.reader(io.StringIO(text[start:]), strict=True)
    try:
        headings = [_spelled(heading) for heading in next(lines, [])]
        rows = [(lines.line_num + skipped, cells) for cells in lines if any(map(str.strip, cells))]
    except csv.Error as error:
        place = Location(str(file), lines.line_num + skipped)
        fix = "close the quote that is open there, and keep cells below 131,072 characters"
        raise InputError.of("E891", f"the table is broken: {error}", place, fix) from None
    place = Location(str(file), 1 + skipped, 1, ",".join(headings))
    if not rows:
        fix = "write a line of column names, and a line for each run"
        raise InputError.of("E891", "the table has no runs", place, fix)
    if repeated := sorted({name for name in headings if name and headings.count(name) > 1}):
        fix = "give each column another name"
        raise InputError.of("E891", f"columns are repeated: {', '.join(repeated)}", place, fix)
    return _Table(file, headings, rows, settings)


# -------------------------------------------------------------------------------------------- logs

_NUMBER = r" *(\d{1,15}(?:\.\d{0,15})?)(?=[\s|]|$)"
_STEP = re.compile(
    rf"elapsed time per iteration \(ms\):{_NUMBER}"  # Megatron-LM
    r"|train_step_timing in s[:=] *(\d{1,9}\.\d{1,15})(?=[\s|,\]])"  # NeMo
    r"|\btps: *([1-9][\d,]{0,14})\s",  # torchtitan: tokens per second of a GPU
    re.MULTILINE,
)
_PEAK = re.compile(rf"\| *max allocated:{_NUMBER}", re.MULTILINE)
_MEGABYTE = 1 << 20
"""Megatron-LM's report_memory divides by 1024 twice (megatron/training/utils.py)."""
_WARM_UP = 5
"""First lines of iterations, which include compilation and first allocations."""


def _read_log(file: Path, text: str, settings: RunSettings) -> MeasuredRun:
    """Read a log; its time is the median of its iterations but the first five, if it has more.

    Lines whose number is cut or garbled count as if they were missing.

    Raises:
        InputError: the log has no time of an iteration (E892).
    """
    ran = settings.scenario
    tokens = ran.batch.global_ * ran.model.seq_length / ran.num_gpus if ran else 0.0
    numbers_s = (
        float(ms) / 1e3 if ms else float(time) if time else tokens / float(rate.replace(",", ""))
        for ms, time, rate in _STEP.findall(text)
    )
    times_s = [time_s for time_s in numbers_s if not wrong_time(time_s)]
    if not times_s:
        message = "the log has no line with 'elapsed time per iteration (ms)' and a time"
        fix = "give a log of Megatron-LM, NeMo or torchtitan that has iterations (--log-interval)"
        raise InputError.of("E892", message, Location(str(file), text.count("\n") + 1), fix)
    sizes = (float(match[1]) * _MEGABYTE for match in _PEAK.finditer(text))
    run = MeasuredRun(
        *(file.stem, file.stem, str(file), 1),
        iteration_time_s=statistics.median(times_s[_WARM_UP:] or times_s),
        peak_bytes=max((size for size in sizes if not wrong_peak(size)), default=None),
        peak_of=PeakOf.TENSORS,
    )
    try:
        scenario, assumed = (ran, []) if ran else _imported(str(file), settings.assignments)
    except InputError as error:
        return replace(run, refusal=in_one_line(error))
    return replace(run, scenario=scenario, assumed=assumed)


def _imported(source: str, overrides: Sequence[str]) -> tuple[Scenario, list[str]]:
    """Return the scenario of arguments or of a log, and what of the arguments is not modelled.

    Raises:
        InputError: as `megatron_draft`, but for unknown arguments, which are noted; or an argument
            has an effect so large that the run cannot be compared (E893).
    """
    request = ImportRequest(source, overrides=overrides, ignore_unknown=True)
    draft = draft_of(read_source(source), request)
    for name, effect in NOT_MODELLED.items():
        setting = draft.given(name) if effect.is_large else None
        if setting and effect.applies(setting.value):
            message = f"{setting.words} is not modelled: {effect.text}"
            raise InputError.of("E893", message, setting.place, "compare a run without it")
    return draft.finished()[0], draft.notes


def read_runs(files: Iterable[Path], settings: RunSettings) -> Runs:
    """Read the runs of all files: a table has one a line, a log is one.

    Raises:
        InputError: a file cannot be read as either, or there is no such profile.
    """
    find_profile(settings.cluster)
    runs = list[Sequence[MeasuredRun] | Runs]()
    for file in files:
        text = read_text(file, MOST_BYTES_OF_LOG)
        is_log = settings.scenario is not None or prints_arguments(text.splitlines())
        runs.append([_read_log(file, text, settings)] if is_log else _read_table(file, settings))
    return Runs(runs)


@takes(ValidationRequest)
def validate(request: ValidationRequest) -> Validation:
    """Simulate measured runs and compare times, memory, and what fits.

    Raises:
        InputError: a file cannot be read, there is no such profile, or an argument is invalid.
    """
    files, cluster, software = request.files, request.cluster, request.software
    check_overrides(request.overrides)
    for name, value in {"cluster": cluster, "software": software}.items():
        if not isinstance(value, str) and (name == "cluster" or value is not None):
            fix = f"write the name of a {'profile' if name == 'cluster' else 'software stack'}"
            raise InputError.of("E114", f"{name} is {value!r:.80}, not a text", fix=fix)
    if isinstance(files, str | bytes) or not isinstance(files, Sequence):
        files = [files]
    settings = RunSettings(cluster, software, tuple(request.overrides), usual_stack(cluster))
    on_progress = partial(request.on_progress, "simulating")
    runs = read_runs([as_path(file) for file in files], settings)
    return validate_runs(runs, cluster, on_progress).with_difference(runs)
