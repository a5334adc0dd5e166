"""The page of `simtrain reproduce explore`, compared with the engine."""

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simtrain.guests.paper.explore import _ASSETS as ASSETS
from simtrain.guests.paper.explore import PAGE, SPLITS
from simtrain.guests.paper.layer import RECOMPUTES, layer_terms
from simtrain.guests.paper.models import MODELS
from simtrain.render.html.document import document_text
from tests.helpers.command_line import call
from tests.helpers.explore_page import VALUES, legal, small_document

pytestmark = pytest.mark.slow  # building the page takes a second


@pytest.fixture(scope="module")
def document():
    return small_document()


@pytest.fixture(scope="module")
def text(document):
    return document_text(document)


def bytes_of(term, sizes):
    """Compute a term in floating point, as the page does, and assert that each step is exact."""
    over, under = float(term["coefficient"]), 1.0
    for name, power in term["powers"].items():
        over *= float(sizes[name]) ** max(power, 0)
        under *= float(sizes[name]) ** max(-power, 0)
    assert over < 2**53
    return over / under


POSITIONS = st.fixed_dictionaries(
    {name: st.sampled_from(values) for name, values in VALUES.items()}
)


@settings(max_examples=50, deadline=None)
@given(wanted=POSITIONS)
@pytest.mark.parametrize("recompute", RECOMPUTES)
@pytest.mark.parametrize("split", SPLITS)
def test_the_arithmetic_of_the_page_is_exact(split, recompute, document, wanted):
    sizes = legal(wanted)
    terms = layer_terms(sequence_parallel=SPLITS[split], recompute=recompute)
    for term in document.data["terms"][split][recompute]:
        (exact,) = (one for one in terms if one.tensor == term["tensor"])
        assert bytes_of(term, sizes) == exact.num_bytes(sizes)


def test_the_sliders_reach_the_models_of_table_3(document):
    for model in MODELS:
        sizes = document.data["models"][model]
        assert all(size in VALUES[name] for name, size in sizes.items())
        assert legal(sizes) == sizes


def test_every_tensor_has_a_role(document):
    everything = [term["tensor"] for term in document.data["terms"]["tensor"]["none"]]
    assert everything == [*PAGE["tensors"]]


def test_the_page_loads_nothing_and_contains_no_formula(text):
    assert re.findall(r'(?:src|href)="(?!#)([^"]*)"', text) == ["https://arxiv.org/abs/2205.05198"]
    assert "@import" not in text and "url(" not in text and "fetch(" not in text
    for path in ASSETS.glob("*.js"):
        code = re.sub(r"//.*", "", path.read_text(encoding="utf-8"))
        assert not re.search(r"\b(34|24|10|8|5|4|2) ?\* ?(sizes|[sbhat]\b)", code)


def test_every_control_has_a_label(text):
    inputs = re.findall(r'<input[^>]* id="([^"]*)"', text)
    assert len(inputs) == len(set(inputs)) == 13
    for name in inputs:
        assert f'for="{name}"' in text


def test_the_command_writes_the_page(document, tmp_path, monkeypatch, snapshot):
    function = "simtrain.guests.paper.explore.explore_document"
    monkeypatch.setattr(function, lambda on_progress: document)
    file = tmp_path / "explore.html"
    assert call("reproduce", "explore", "-o", str(file)).stdout == f"{file}\n"
    written = file.read_text(encoding="utf-8")
    found = json.loads(re.search(r'id="data">(.*?)</script>', written).group(1))
    assert found["lengths"] == [2048, 8192]
    assert {name: str(found[name]) for name in ("models", "sliders", "terms")} == snapshot
