"""A recorded torch program: the ops of one training step on one rank, and its file.

Files come from others: bytes, counts and products of counts are limited before anything is built,
and every op has the tensors that its rule reads (`ops.toml`).

`simtrain import --record` records a program. A scenario names the file, as in `program:
gpt.program.json.gz`. The file is JSON, packed with gzip or not, so that people can read and compare
recordings. Ops that repeat, such as those of equal layers, are written once with a count.
"""

from __future__ import annotations

import functools
import gzip
import io
import json
import re
import tomllib
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, ValidationError, field_validator, model_validator

from simtrain.base.entry import Count, CountOrZero, Strict
from simtrain.base.input_file import FileVersion, open_input, read_text
from simtrain.base.values import dataclass
from simtrain.errors import InputError, Location, printable

_MOST_BYTES, _MOST_RANKS = 64 << 20, 1 << 20
# The text is counted before it is parsed: an op takes some 2 kB, a word some 60 bytes.
_MOST_OBJECTS, _MOST_WORDS = 100_000, 4_000_000
_MOST_OPS, _MOST_WAITS, _MOST_MICROBATCHES = 1_000_000, 2_000_000, 4096
_MOST_REMARKS, _MOST_BYTES_OF_MEMORY = 1000, 1 << 50
_TENSOR = re.compile(r"(?:(\d{1,9}) x )?([a-z]+[a-z0-9_]{0,30})\[([\d,*]{0,400})\]('?)")
_MOST_ELEMENTS, _MOST_BITS = 1 << 60, 128
_BITS = re.compile(r"[a-z]+(\d+)")

COMPILED = (
    "torch.compile is left out: the ops are those of the eager program. The software stack "
    "torchtitan_compiled fuses kernels as a compiler does."
)
"""The remark of a recording whose program compiles its model or its loss."""
OPS_DATA: dict[str, dict[str, str]] = tomllib.loads(
    Path(__file__).with_name("ops.toml").read_text("utf-8")
)
"""How ops are priced, by their names in torch, and the tensors that their rules read."""


def _without_controls(text: str) -> str:
    if printable(text) != text:
        raise ValueError(f"{printable(text)!a:.60} has control characters")
    return text


Word = Annotated[str, AfterValidator(_without_controls)]
Bytes = Annotated[int, Field(ge=0, le=_MOST_BYTES_OF_MEMORY)]
Scalar = bool | int | float | Word
_Texts = Annotated[list[str], Field(default_factory=list)]


@dataclass(frozen=True, slots=True)
class ProgramTensor:
    """A tensor of a recorded op.

    Args:
        dtype: such as "bf16".
        shape: sizes of its dimensions.
        num_stored: elements in memory: dimensions that repeat one element count once.
        number: equal tensors.
        is_transposed: its matrices are stored by columns.
    """

    dtype: str
    shape: tuple[int, ...]
    num_stored: int
    number: int = 1
    is_transposed: bool = False

    @property
    def element_bytes(self) -> float:
        """Bytes of an element; 8 bits for booleans."""
        bits = _BITS.match(self.dtype)
        return int(bits[1]) / 8 if bits else 4

    @property
    def num_bytes(self) -> int:
        return int(self.number * self.num_stored * self.element_bytes)


@functools.lru_cache(maxsize=65536)
def parse_tensor(text: str) -> ProgramTensor:
    """Read a tensor: "bf16[4,1024,768]", "24 x f32[768]", "f32[4,1024*]", "bf16[768,768]'".

    Raises:
        ValueError: it has another form, or too many elements.
    """
    match = _TENSOR.fullmatch(text)
    if match is None:
        raise ValueError(f'"{text:.60}" is no tensor such as bf16[4,1024,768]')
    number, dtype, sizes, transposed = match.groups()
    shape, stored, elements = [], 1, 1
    for size in sizes.split(",") if sizes else ():
        if not size.rstrip("*").isdecimal() or size.count("*") > 1:
            raise ValueError(f'"{text:.60}" is no tensor such as bf16[4,1024,768]')
        length = int(size.rstrip("*"))
        shape.append(length)
        elements *= length
        stored *= 1 if size.endswith("*") else length
    bits = _BITS.match(dtype)
    if bits and not 0 < int(bits[1]) <= _MOST_BITS:
        raise ValueError(f'"{text:.60}" has elements of {bits[1]:.9} bits')
    times = int(number or 1)
    if elements * times > _MOST_ELEMENTS:
        raise ValueError(f'"{text:.60}" has more than 2^60 elements')
    return ProgramTensor(dtype, tuple(shape), stored, times, bool(transposed))


class ProgramOp(Strict):
    """An op of a step on one rank.

    Args:
        op: torch's name, such as "aten.mm".
        module: the module that it belongs to, with stars for numbers ("layers.*.mlp.up").
        reads, writes: its tensors; of many, the number of each.
        options: scalars among its arguments.
        again: it is recomputed in the backward pass.
        stream: the stream on which it runs; 0 computes.
        group: number of its group in `RecordedProgram.groups`, if it is a collective.
        waits: for each op of another stream that it waits for, how many ops before it that one is.
        makes_bytes: memory that it allocates.
        frees_bytes: memory that is freed after it, before the next op.
        gradient_bytes: the part of `makes_bytes` that are gradients of parameters.
        freed_gradient_bytes: the part of `frees_bytes` that are gradients of parameters.
    """

    op: Annotated[Word, Field(min_length=1)]
    module: Word = ""
    reads: _Texts
    writes: _Texts
    options: dict[Word, Scalar] = Field(default_factory=dict)
    again: bool = False
    stream: CountOrZero = 0
    group: CountOrZero | None = None
    waits: list[Count] = Field(default_factory=list)
    makes_bytes: Bytes = 0
    frees_bytes: Bytes = 0
    gradient_bytes: Bytes = 0
    freed_gradient_bytes: Bytes = 0

    @property
    def name(self) -> str:
        return f"{self.module}: {self.op}" if self.module else self.op

    @field_validator("reads", "writes")
    @classmethod
    def _are_tensors(cls, texts: list[str]) -> list[str]:
        for text in texts:
            parse_tensor(text)
        return texts

    @model_validator(mode="after")
    def _has_the_tensors_of_its_rule(self) -> Self:
        patterns = OPS_DATA["shapes"].get(self.op)
        if patterns and not any(_fits(each.strip(), self) for each in patterns.split("|")):
            tensors = f"{', '.join(self.reads)} -> {', '.join(self.writes)}"
            raise ValueError(f"{self.op} takes tensors of sizes {patterns}, not {tensors:.200}")
        if self.gradient_bytes > self.makes_bytes:
            raise ValueError(f"gradient_bytes of {self.op} are more than its makes_bytes")
        if self.freed_gradient_bytes > self.frees_bytes:
            raise ValueError(f"freed_gradient_bytes of {self.op} are more than its frees_bytes")
        return self

    @property
    def read(self) -> list[ProgramTensor]:
        return [*map(parse_tensor, self.reads)]

    @property
    def written(self) -> list[ProgramTensor]:
        return [*map(parse_tensor, self.writes)]


def _fits(pattern: str, op: ProgramOp) -> bool:
    """Return whether an op has the tensors of a pattern, such as "mk,kn->mn", or more of them."""
    sizes: dict[str, int] = {}
    for texts, tensors in zip(pattern.split("->"), (op.read, op.written), strict=True):
        terms = texts.split(",") if texts else []
        if len(tensors) < len(terms):
            return False
        for term, tensor in zip(terms, tensors, strict=False):
            first, dots, last = term.partition("...")
            length, shape = len(first) + len(last), tensor.shape
            if term == "*":
                continue
            if tensor.number > 1 or len(shape) < length or (not dots and len(shape) > length):
                return False
            named = [*zip(first, shape, strict=False), *zip(last[::-1], shape[::-1], strict=False)]
            if any(sizes.setdefault(letter, size) != size for letter, size in named):
                return False
    return True


class ProgramRun(Strict):
    """Ops that repeat `count` times."""

    count: Count = 1
    ops: Annotated[list[ProgramOp], Field(min_length=1)]

    @property
    def num_ops(self) -> int:
        return self.count * len(self.ops)


class ProgramStates(Strict):
    """Bytes that a rank holds before the step.

    Args:
        parameters_bytes: parameters.
        optimizer_bytes: states of the optimizer.
        gradients_bytes: gradients of earlier microbatches.
        other_bytes: everything else, such as the batch and buffers of modules.
    """

    parameters_bytes: Bytes
    optimizer_bytes: Bytes
    other_bytes: Bytes
    gradients_bytes: Bytes = 0


class RecordedProgram(Strict):
    """A recorded training step.

    Args:
        version: of the format.
        torch: version of torch that ran it.
        f32_products: data type of the products of fp32 numbers (torch's setting).
        command: the command that recorded it.
        gpus: number of ranks.
        tensor: ranks that share a batch; the others are replicas with batches of their own.
        sequences, tokens: shape of a rank's microbatch.
        microbatches: of the step. The last one is recorded, and stands for all of them.
        num_parameters, num_trained: parameters of the whole model, and those with gradients.
        states: what the rank holds before the microbatch.
        groups: ranks of each group with a collective.
        remarks: what the recording assumes or leaves out, a sentence each.
        group_streams: streams of process groups, with their asynchronous collectives. The program
            itself has made the other streams, except the first one.
        forward, backward, optimizer: the ops of each pass, in order of issue.
    """

    version: Literal[1]
    torch: Annotated[Word, Field(min_length=1)]
    f32_products: Literal["fp32", "tf32"] = "fp32"
    command: Annotated[Word, Field(min_length=1)]
    gpus: Annotated[int, Field(ge=1, le=_MOST_RANKS)]
    tensor: Annotated[int, Field(ge=1, le=_MOST_RANKS)] = 1
    sequences: Annotated[int, Field(ge=1, le=_MOST_RANKS)]
    tokens: Annotated[int, Field(ge=1, le=2**31 - 1)]
    microbatches: Annotated[int, Field(ge=1, le=_MOST_MICROBATCHES)] = 1
    num_parameters: Annotated[int, Field(ge=0, le=_MOST_ELEMENTS)]
    num_trained: Annotated[int, Field(ge=0, le=_MOST_ELEMENTS)]
    states: ProgramStates
    groups: list[Annotated[list[CountOrZero], Field(min_length=1)]] = Field(default_factory=list)
    remarks: Annotated[list[Word], Field(max_length=_MOST_REMARKS)] = Field(default_factory=list)
    group_streams: list[CountOrZero] = Field(default_factory=list)
    forward: Annotated[list[ProgramRun], Field(min_length=1)]
    backward: Annotated[list[ProgramRun], Field(min_length=1)]
    optimizer: list[ProgramRun] = Field(default_factory=list)

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if self.gpus % self.tensor:
            raise ValueError(f"tensor is {self.tensor}, which does not divide gpus ({self.gpus})")
        runs = [run for runs in self.passes.values() for run in runs]
        _limit("ops", sum(run.num_ops for run in runs), _MOST_OPS)
        waits = sum(run.count * len(op.waits) for run in runs for op in run.ops)
        _limit("waits", waits, _MOST_WAITS)
        _limit("ranks of groups", sum(map(len, self.groups)), _MOST_RANKS)
        for ranks in self.groups:
            if len({*ranks}) != len(ranks) or max(ranks) >= self.gpus:
                raise ValueError(f"a group has ranks twice, or ranks beyond {self.gpus - 1}")
        num_bytes = sum(self.states.model_dump().values())
        for name, of_pass in self.passes.items():
            place = 0
            for number, run in enumerate(of_pass):
                for op_number, op in enumerate(run.ops, place):
                    where = f"{name}.{number}.ops.{op_number - place} ({op.op:.60})"
                    if op.group is not None and op.group >= len(self.groups):
                        raise ValueError(f"{where} has group {op.group}, of {len(self.groups)}")
                    if op.waits and max(op.waits) > op_number:
                        raise ValueError(f"{where} waits for an op before the first one")
                num_bytes = _bytes_after(run, num_bytes, f"{name}.{number}")
                place += run.num_ops
        return self

    @property
    def passes(self) -> dict[str, list[ProgramRun]]:
        return {"forward": self.forward, "backward": self.backward, "optimizer": self.optimizer}

    @property
    def data(self) -> int:
        return self.gpus // self.tensor


def _limit(what: str, number: int, most: int) -> None:
    if number > most:
        raise ValueError(f"it has {number} {what}, more than {most}")


def _bytes_after(run: ProgramRun, before: int, where: str) -> int:
    """Return the bytes that a rank has after a run, if it has `before` at its start.

    Raises:
        ValueError: an op frees more than there is, or makes more than any memory has.
    """
    change = sum(op.makes_bytes - op.frees_bytes for op in run.ops)
    for first in {0, (run.count - 1) * change}:  # no repetition in between is an extreme
        now = before + first
        for op in run.ops:
            now += op.makes_bytes
            if now > _MOST_BYTES_OF_MEMORY:
                raise ValueError(f"{where} has {now} bytes at {op.op:.60}, more than 2^50")
            now -= op.frees_bytes
            if now < 0:
                raise ValueError(f"{where} frees {-now} bytes more at {op.op:.60} than there are")
    return before + run.count * change


def expanded(runs: Iterable[ProgramRun]) -> Iterator[ProgramOp]:
    """Yield the ops of runs, repeated."""
    for run in runs:
        for _ in range(run.count):
            yield from run.ops


@functools.lru_cache(maxsize=16)
def read_program(version: FileVersion) -> RecordedProgram:
    """Read a recording.

    Raises:
        InputError: the file cannot be read (E101, E102), or is no recording (E940).
    """
    place = Location(version.file)
    fix = "record the program again: simtrain import --record SCRIPT.py:FUNCTION -o FILE"
    try:
        return RecordedProgram.model_validate_json(_content(Path(version.file)))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        reason = "a recording is written by simtrain import --record, and checked as a whole"
        words = first["msg"].removeprefix("Value error, ")
        message = f"is no recording of a program: {where}: {words}"
        raise InputError.of("E940", message, place, fix, reason) from None
    except (OSError, EOFError, ValueError, zlib.error) as error:
        message = f"is no recording of a program: {error}"
        raise InputError.of("E940", message, place, fix) from None


def _content(path: Path) -> bytes:
    """Return the text of a recording, unpacked, if it has no more than a program needs."""
    if not path.is_file():
        read_text(path)  # says what is wrong with the path
    with open_input(path) as file:
        packed = file.read(_MOST_BYTES + 1)
    is_packed = packed[:2] == b"\x1f\x8b"
    unpacked = gzip.GzipFile(fileobj=io.BytesIO(packed)) if is_packed else io.BytesIO(packed)
    with unpacked:
        content = unpacked.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise ValueError(f"it has more than {_MOST_BYTES >> 20} MiB")
    _limit("sections", content.count(b"{"), _MOST_OBJECTS)
    _limit("words", content.count(b",") + content.count(b"["), _MOST_WORDS)
    return content


def program_text(program: RecordedProgram) -> str:
    """Write a recording as JSON: a line for each op, so that two recordings compare well."""
    data = program.model_dump(mode="json", exclude_defaults=True)
    passes = {name: data.pop(name) for name in program.passes if name in data}
    lines = [f" {json.dumps(name)}: {json.dumps(value)}" for name, value in data.items()]
    lines += [f" {json.dumps(name)}: [\n{runs_text(runs)}\n ]" for name, runs in passes.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def runs_text(runs: list[dict[str, Any]]) -> str:
    """Write the runs of a pass, a line for each op."""
    texts = []
    for run in runs:
        ops = ",\n".join(f"   {json.dumps(op)}" for op in run["ops"])
        texts.append(f'  {{"count": {run.get("count", 1)}, "ops": [\n{ops}\n  ]}}')
    return ",\n".join(texts)


def write_program(program: RecordedProgram, file: Path) -> None:
    """Write a recording, packed if the file's name ends with .gz. Equal ones are equal files."""
    content = program_text(program).encode()
    if file.suffix == ".gz":
        content = gzip.compress(content, mtime=0)
    file.write_bytes(content)
