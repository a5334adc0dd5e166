"""What a command writes, its reader reads; what the reader would refuse is not written."""

import pathlib

import pytest

import simtrain.base.output_folder as output_folder
from simtrain.base.output_folder import write_new, write_text
from simtrain.errors import InputError
from simtrain.hardware.evidence import read_validated_on
from simtrain.hardware.load import load_profile
from simtrain.scenario import load_unchecked
from tests.helpers.command_line import call

READERS = {
    "a scenario": load_unchecked,
    "a profile": load_profile,
    "errors of a profile": read_validated_on,
}


@pytest.mark.parametrize("what", READERS)
@pytest.mark.parametrize("writes", [write_text, write_new])
def test_what_cannot_be_read_again_is_not_written(
    what: str, writes: object, tmp_path: pathlib.Path
) -> None:
    file = tmp_path / "x.yaml"
    words = (file, "version: 1\nwrong: [\n")
    with pytest.raises(InputError, match=r"x\.yaml: E121 nothing was written"):
        if writes is write_new:
            write_new(*words, READERS[what])
        else:
            write_text(*words, what, read=READERS[what])
    assert [*tmp_path.iterdir()] == []


WRITERS = [
    "show template -o new.yaml",
    "show fields -o new.yaml",
    "show llama3_70b -o new.yaml",
    "import job.sh --set cluster=h100_sxm -o new.yaml",
    "search gpt2_1_5b --gpus 1 --top 1 --set model.num_layers=2 --set batch.global=2 -o new",
    "validate runs.csv --cluster h100_sxm -o new.yaml",
]
RUNS = "layers,hidden,heads,seq,gpus,global_batch,iteration_s\n4,1024,16,512,8,64,1\n"


@pytest.mark.slow
@pytest.mark.parametrize("command", WRITERS)
def test_every_writer_reads_what_it_writes(
    command: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each command reads every YAML file that it writes before it says so."""
    monkeypatch.chdir(tmp_path)
    pathlib.Path("runs.csv").write_text(RUNS, "utf-8")
    assert call("export", "gpt2_1_5b", "-o", "job.sh").exit_code == 0
    read: set[str] = set()
    check = output_folder.check_readable

    def recorded(unfinished: pathlib.Path, file: pathlib.Path, read_: object = None) -> None:
        assert callable(read_)
        read.add(file.name)
        check(unfinished, file, read_)

    monkeypatch.setattr(output_folder, "check_readable", recorded)
    monkeypatch.setattr("simtrain.studies.found_files.check_readable", recorded)
    done = call(*command.split())
    assert done.exit_code == 0, done.stderr
    written = {path.name for path in pathlib.Path().rglob("*.yaml")}
    assert written and written == read
