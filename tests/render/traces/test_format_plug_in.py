"""A format of traces is added with a class in a file of any installed package, nothing else."""

import gzip
import pathlib

import pytest

from tests.helpers.outsider import Outsider

pytestmark = pytest.mark.slow

NEW_FILE = '''
"""A line of text per pass."""

from simtrain.render.traces.formats.trace_format import TraceFormat


class Lines(TraceFormat):
    """Stages and names of passes."""

    suffixes = (".txt", ".txt.gz")
    text = "a line per pass"
    has_kernels = False

    def write(self, events, target):
        """Write the passes of all stages."""
        for stage in range(events.result.num_stages):
            target.write(f"stage {stage}, rank {events.place(stage)[0]}\\n".encode())
'''


@pytest.fixture(scope="module")
def outsider(tmp_path_factory: pytest.TempPathFactory) -> Outsider:
    """An installed package with one more format."""
    parts = {"trace_formats": {"lines": "lines:Lines"}}
    return Outsider.install(tmp_path_factory.mktemp("outsider"), {"lines.py": NEW_FILE}, parts)


@pytest.mark.ci
def test_a_run_writes_a_new_format(outsider: Outsider, tmp_path: pathlib.Path) -> None:
    plain, compressed = tmp_path / "trace.txt", tmp_path / "trace.txt.gz"
    for trace in (plain, compressed):
        outsider.call("run", "gpt2_1_5b", "--trace", str(trace))
    assert plain.read_text("utf-8") == "stage 0, rank 0\n"
    assert gzip.decompress(compressed.read_bytes()) == plain.read_bytes()


def test_help_errors_and_documents_list_a_new_format(outsider: Outsider) -> None:
    help_text = " ".join(outsider.call("run", "--help").replace("│", " ").split())
    assert ".txt or .txt.gz: a line per pass." in help_text
    assert ".csv, .txt or .txt.gz" in outsider.refused("run", "gpt2_1_5b", "--trace", "t.svg")
    kernels = ("--trace", "t.txt", "--trace-microbatches", "0")
    assert "no effect on a line per pass" in outsider.refused("run", "gpt2_1_5b", *kernels)
    code = "from docs.update.lists import trace_formats; print(trace_formats(None))"
    assert "`.txt`, `.txt.gz`" in outsider.spawn("-c", code).stdout
