"""A format of traces is added with a class in a new file and its place, nothing else."""

import gzip
import pathlib

import pytest

from tests.helpers.checkout import Checkout

pytestmark = [pytest.mark.slow, pytest.mark.ci]

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
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """A copy of the project with one more format."""
    copy = Checkout.copy(tmp_path_factory.mktemp("checkout"))
    copy.add("simtrain/render/traces/formats/lines.py", NEW_FILE)
    registry = "simtrain/render/traces/formats/registry.py"
    line = "from simtrain.render.traces.formats.lines import Lines\n"
    copy.replace(registry, "\n\nFORMATS", f"\n{line}\n\nFORMATS")
    copy.replace(registry, "ScheduleOrder())", "ScheduleOrder(), Lines())")
    return copy


def test_a_run_writes_a_new_format(checkout: Checkout, tmp_path: pathlib.Path) -> None:
    plain, compressed = tmp_path / "trace.txt", tmp_path / "trace.txt.gz"
    for trace in (plain, compressed):
        checkout.call("run", "gpt2_1_5b", "--trace", str(trace))
    assert plain.read_text("utf-8") == "stage 0, rank 0\n"
    assert gzip.decompress(compressed.read_bytes()) == plain.read_bytes()


def test_help_errors_and_documents_list_a_new_format(checkout: Checkout) -> None:
    help_text = " ".join(checkout.call("run", "--help").replace("│", " ").split())
    assert ".txt or .txt.gz: a line per pass." in help_text
    assert ".csv, .txt or .txt.gz" in checkout.refused("run", "gpt2_1_5b", "--trace", "t.svg")
    kernels = ("--trace", "t.txt", "--trace-microbatches", "0")
    assert "no effect on a line per pass" in checkout.refused("run", "gpt2_1_5b", *kernels)
    code = "from docs.update.trace_formats import trace_formats; print(trace_formats(None))"
    assert "`.txt`, `.txt.gz`" in checkout.spawn("-c", code).stdout
