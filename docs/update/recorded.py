"""Published runs of torchtitan beside recordings of such programs (docs/recorded_programs)."""

from docs.update.documents import ROOT
from docs.update.published.recorded import RECORDED, RecordedRun
from docs.update.request import Request, signed_percent, table
from simtrain.iteration.report.result import Result
from simtrain.scenario import Scenario
from simtrain.studies.simulation import simulate


def result_of(run: RecordedRun) -> Result:
    """Simulate a recorded run on the machine of the published one, in eager PyTorch."""
    file = ROOT / "docs" / "recorded_programs" / f"{run.recording}.program.json.gz"
    data = {"program": str(file), "cluster": run.cluster, "software": {"stack": "torchtitan"}}
    return simulate(Scenario.model_validate(data))


def recorded_runs(request: Request) -> str:
    """Return the table of published throughputs and those of recorded programs."""
    rows = []
    for run in RECORDED:
        result = result_of(run)
        ours = result.tokens_per_s / result.scenario.num_gpus
        gpus = f"{result.scenario.num_gpus} of `{run.cluster}`"
        error = signed_percent(run.tokens_per_s / ours - 1)
        rows.append([run.words, gpus, f"{run.tokens_per_s:,.0f}", f"{ours:,.0f}", error])
    head = ["run, recompute", "GPUs", "tokens/s and GPU, published", "ours", "error of time"]
    return table(head, rows)
