"""Recordings of programs: their file, its limits, and what is refused."""

import gzip
from pathlib import Path

import pytest
from hypothesis import given

from simtrain.base.input_file import FileVersion
from simtrain.errors import InputError
from simtrain.guests.recording.program import (
    RecordedProgram,
    expanded,
    parse_tensor,
    program_text,
    read_program,
    write_program,
)
from tests.helpers.recorded_programs import LAYERS, linear_layers, programs


@pytest.mark.parametrize(
    ("text", "num_bytes", "shape"),
    [
        ("bf16[4,1024,768]", 4 * 1024 * 768 * 2, (4, 1024, 768)),
        ("f32[]", 4, ()),
        ("24 x f32[768]", 24 * 768 * 4, (768,)),
        ("b8[4,1024*]", 4, (4, 1024)),
        ("f8e4m3[16,32]'", 512, (16, 32)),
        ("i64[0,5]", 0, (0, 5)),
    ],
)
def test_a_tensor_is_read(text: str, num_bytes: int, shape: tuple[int, ...]) -> None:
    tensor = parse_tensor(text)
    assert (tensor.num_bytes, tensor.shape) == (num_bytes, shape)
    assert tensor.is_transposed == text.endswith("'")


@pytest.mark.parametrize("text", ["", "bf16", "bf16[a]", "[3]", "bf16[3", "bf16[3**]", "f32[,]"])
def test_a_text_of_another_form_is_no_tensor(text: str) -> None:
    with pytest.raises(ValueError, match="is no tensor"):
        parse_tensor(text)


@given(program=programs)
def test_a_recording_is_read_as_it_was_written(
    program: RecordedProgram, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("recording")
    for name in ("a.program.json", "a.program.json.gz"):
        write_program(program, folder / name)
        assert read_program(FileVersion.of(str(folder / name))) == program


def test_a_recording_has_a_line_for_each_different_op() -> None:
    program = linear_layers()
    lines = [line for line in program_text(program).splitlines() if '"op":' in line]
    assert len(lines) == sum(len(run.ops) for runs in program.passes.values() for run in runs)
    assert len([*expanded(program.forward)]) == LAYERS


@pytest.mark.ci
def test_a_file_that_unpacks_to_too_much_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "x.program.json.gz"
    with gzip.open(file, "wb") as packed:
        for _ in range(65):
            packed.write(b" " * (1 << 20))
    with pytest.raises(InputError, match=r"E940 .* more than 64 MiB"):
        read_program(FileVersion.of(str(file)))


def test_a_broken_archive_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "x.program.json.gz"
    write_program(linear_layers(), file)
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(InputError, match="E940"):
        read_program(FileVersion.of(str(file)))


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="E101"):
        read_program(FileVersion.of(str(tmp_path / "x.program.json")))


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "x.program.json"
    write_program(linear_layers(), file)
    first = read_program(FileVersion.of(str(file)))
    write_program(linear_layers(command="another command"), file)
    assert read_program(FileVersion.of(str(file))).command != first.command
