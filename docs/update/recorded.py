"""Published runs of torchtitan beside recordings of such programs (docs/recorded_programs)."""

from pathlib import Path
from tempfile import TemporaryDirectory

from docs.update.documents import ROOT
from docs.update.published.recorded import RECORDED, RecordedRun
from docs.update.request import Request, signed_percent, table
from simtrain.importing.import_scenario import import_
from simtrain.iteration.report.result import Result
from simtrain.scenario import Scenario
from simtrain.studies.simulation import simulate


def result_of(run: RecordedRun) -> Result:
    """Simulate a recorded run on the machine of the published one, in eager PyTorch."""
    file = ROOT / "docs" / "recorded_programs" / f"{run.recording}.program.json.gz"
    data = {"program": str(file), "cluster": run.cluster, "software": {"stack": "torchtitan"}}
    return simulate(Scenario.model_validate(data))


def imported_result_of(run: RecordedRun, num_gpus: int) -> Result:
    """Simulate the job of a recorded run as `simtrain import` reads it."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "job.toml"
        file.write_text(run.job, encoding="utf-8")
        changes = [f"cluster={run.cluster}", "software.stack=torchtitan"]
        return simulate(import_(str(file), gpus=num_gpus, overrides=changes))


def recorded_runs(request: Request) -> str:
    """Return the table of published throughputs and those of recorded programs."""
    rows = []
    for run in RECORDED:
        result = result_of(run)
        num_gpus = result.scenario.num_gpus
        ours = result.tokens_per_s / num_gpus
        imported = imported_result_of(run, num_gpus).tokens_per_s / num_gpus
        errors = (signed_percent(run.tokens_per_s / each - 1) for each in (ours, imported))
        gpus = f"{num_gpus} of `{run.cluster}`"
        rows.append([run.words, gpus, f"{run.tokens_per_s:,.0f}", f"{ours:,.0f}", *errors])
    head = ["run, recompute", "GPUs", "tokens/s and GPU, published", "recorded"]
    return table([*head, "error of time", "of the imported job"], rows)
