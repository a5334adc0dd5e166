"""An exchange of context-parallel ranks is added by any installed package, nothing else."""

import json

import pytest

from tests.helpers.outsider import Outsider

pytestmark = pytest.mark.slow

NEW_FILE = '''
"""All-to-alls within pairs of ranks, and rings between them."""

from simtrain.scenario.parallelism import AttentionSteps, ContextExchange
from simtrain.scenario.parallelism import TensorT


class Pairs(ContextExchange):
    """The hierarchy with subgroups of two, which need no further field."""

    name = "pairs"
    summary = "exchanges tokens for heads in pairs, and passes keys and values between pairs"
    takes_latent = True

    def ranks_of_heads(self, num_ranks: int, subgroup: int | None) -> int:
        """Return two."""
        return 2

    def record(self, steps: AttentionSteps[TensorT]) -> TensorT:
        """Exchange, attend around the ring, and exchange back."""
        steps.tokens_for_heads()
        return steps.heads_for_tokens(steps.attend_around_ring())
'''
CONTEXT = "--set", "parallelism.context=4", "--set", "model.seq_length=32768"


def way(name: str, *more: str) -> tuple[str, ...]:
    fields = f"parallelism.context_communication={name}", *more
    return *CONTEXT, *(word for field in fields for word in ("--set", field))


@pytest.fixture(scope="module")
def outsider(tmp_path_factory: pytest.TempPathFactory) -> Outsider:
    """An installed package with one more exchange."""
    return Outsider.install(
        tmp_path_factory.mktemp("outsider"),
        {"pairs.py": NEW_FILE},
        {"context_exchanges": {"pairs": "pairs:Pairs"}},
    )


def test_attention_runs_it(outsider: Outsider) -> None:
    """It is a hierarchy with subgroups of two."""
    times = [
        json.loads(outsider.call("run", "llama3_8b", *words, "--format=json"))["iteration_time_s"]
        for words in (way("pairs"), way("a2a+p2p", "parallelism.context_a2a=2"))
    ]
    assert times[0] == times[1]


def test_rules_and_errors_know_it(outsider: Outsider) -> None:
    error = outsider.refused("run", "llama3_8b", *way("pairs", "attention_backend=unfused"))
    assert "E350" in error
    error = outsider.refused("run", "llama3_8b", *way("pair"))
    assert "pairs, ring_self_attention" in error and "did you mean pairs?" in error
