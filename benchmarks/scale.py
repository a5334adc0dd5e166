"""Print what large questions cost, and draw how the cost of one evaluation grows with its size.

`python -m benchmarks.scale questions WORDS` runs each command, or those whose names contain one of
the words, in a process of its own. `python -m benchmarks.scale growth FILE.svg` evaluates scenarios
of growing sizes and draws them; slopes are those of the last doublings on logarithmic axes.
"""

import itertools
import math
import os
import pathlib
import subprocess
import sys
import tempfile
from functools import partial

import yaml

import simtrain
from benchmarks.table import additions
from simtrain.studies.evaluation import Evaluator

QUESTIONS = {
    "search of 175B on 64 GPUs": "search table5_175b_present --gpus 64",
    "search of 175B on 512 GPUs": ("search table5_175b_present --gpus 512 --set batch.global=1536"),
    "search of Mixtral 8x7B on 256 GPUs": "search mixtral_8x7b --gpus 256",
    "search of DeepSeek-V3 on 1,024 GPUs": "search deepseek_v3 --gpus 1024",
    "search of DeepSeek-V3 on 2,048 GPUs": "search deepseek_v3 --gpus 2048",
    "sweep of 12,288 points": "sweep 12288.yaml -o few --workers 1",
    "sweep of 98,304 points": "sweep 98304.yaml -o many --workers 1",
    "validate of 10,000 different runs": "validate runs.csv --cluster h100_sxm",
    "page of 4,096 microbatches": (
        "run table5_175b_present --set batch.global=4096 --allow-oom -o page.html"
    ),
    "100 draws of 16,384 different ranks": (
        "run llama3_405b --gpus 16384 --set batch.global=8192 --set variation.kernels=0.02 "
        "--draws 100"
    ),
    "1,000 trainings of 54 days": (
        "cost llama3_405b --days 54 --gpus 16384 --set batch.global=8192 --draws 1000"
    ),
}


def write_files(folder: pathlib.Path) -> None:
    """Write the sweeps and the table that questions read."""
    for num_points in (12_288, 98_304):
        axes = {
            "parallelism.tensor": [1, 2, 4, 8],
            "batch.micro": [1, 2],
            "recompute": ["none", "selective", "full"],
            "parallelism.pipeline": [1, 2, 4, 8],
            "batch.global": [16 * step for step in range(1, 17)],
            "model.seq_length": [1024 + 128 * step for step in range(num_points // 1536)],
        }
        text = yaml.safe_dump({"base": "table5_22b_present", "axes": axes})
        (folder / f"{num_points}.yaml").write_text(text)
    names = "layers,hidden,heads,seq,vocab,tp,pp,gpus,micro_batch,global_batch,iteration_s"
    rows = (
        f"{layers},4096,32,{seq},51200,2,2,{gpus},1,{2 * gpus},{gpus + layers}.5"
        for layers, gpus, seq in itertools.product(
            range(8, 58, 2), (16, 32, 64, 128), range(1024, 2624, 16)
        )
    )
    (folder / "runs.csv").write_text("\n".join([names, *rows]))


def ask(words: str, folder: pathlib.Path) -> tuple[float, float]:
    """Return the seconds of processor and the most MB of memory that a command takes."""
    line = [sys.executable, "-m", "simtrain", *words.split()]
    with (folder / "output.txt").open("w") as output:
        process = subprocess.Popen(line, cwd=folder, stdout=output, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        print((folder / "output.txt").read_text()[-500:], file=sys.stderr)
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1000


# Growth: each scenario has a sequence length of its own, so it is recorded, timed and built anew.

Points = list[tuple[int, float]]
AXES: dict[str, tuple[str, range, dict[str, object]]] = {
    "layers": ("model.num_layers", range(2, 13), {}),
    "microbatches": ("batch.global", range(6, 14), {"parallelism.pipeline": 8, "batch.micro": 1}),
    "stages": ("parallelism.pipeline", range(7), {"model.num_layers": 64, "batch.global": 512}),
    "replicas": ("parallelism.data", range(10), {"batch.global": 4096}),
}
"""For each axis its field, the powers of two that it takes, and what else is changed."""


def grow(axis: str) -> Points:
    """Return sizes and the additions that one evaluation takes."""
    field, powers, changes = AXES[axis]
    base = simtrain.load_scenario("table5_22b_present").replace(changes)
    evaluate, lengths = Evaluator(allow_oom=True).evaluate, itertools.count(2048, -8)
    return [
        (
            2**power,
            additions(
                partial(evaluate, base.replace({field: 2**power, "model.seq_length": length}))
                for length in itertools.islice(lengths, 8)
            ),
        )
        for power in powers
    ]


def slope(points: Points) -> float:
    """Return the slope of the last two doublings on logarithmic axes."""
    (first, before), (last, after) = points[-3], points[-1]
    return math.log(after / before) / math.log(last / first)


def draw(file: pathlib.Path) -> None:
    """Measure and draw all axes, and print their slopes."""
    import matplotlib.pyplot as plt
    import numba  # noqa: F401 (loops run compiled from the first size on)

    plt.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "growth"}
    figure, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
    for name in AXES:
        points = grow(name)
        (first, least), (last, most) = points[0], points[-1]
        row = name, f"{first:,} to {last:,}", f"{least:,.0f} to {most:,.0f}", f"{slope(points):.2f}"
        print("|", " | ".join(row), "|", flush=True)
        axes.loglog(*zip(*points, strict=True), marker="o", label=f"{name}: {slope(points):.2f}")
    axes.set(xlabel="size", ylabel="additions of one evaluation")
    axes.legend(title="slope of the last two doublings")
    figure.savefig(file, metadata={"Date": None})


def main() -> None:
    """Answer the questions, or draw the growth."""
    what, *words = sys.argv[1:]
    if what == "growth":
        draw(pathlib.Path(words[0]))
        return
    print("| question | processor s | MB |\n|---|---|---|")
    with tempfile.TemporaryDirectory() as place:
        folder = pathlib.Path(place)
        write_files(folder)
        for name, line in QUESTIONS.items():
            if not words or any(word in name for word in words):
                print("| {} | {:.1f} | {:.0f} |".format(name, *ask(line, folder)), flush=True)


if __name__ == "__main__":
    main()
