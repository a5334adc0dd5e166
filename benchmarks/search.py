"""Time searches in this process, in processor seconds: the 175B model, and larger spaces."""

import sys
import time

from simtrain.scenario import load_unchecked
from simtrain.studies.search.run import search

SEARCHES = (
    ("table5_175b_present", 64),
    ("table5_175b_present", 512, "batch.global=1536"),
    ("mixtral_8x7b", 256),
    ("deepseek_v3", 1024),
    ("deepseek_v3", 2048),
)


def main() -> None:
    """Time the searches, or those of the models that are named."""
    print("| search | legal | simulated | best | refined | processor seconds |")
    print("|---|---|---|---|---|---|")
    for name, gpus, *overrides in SEARCHES:
        if sys.argv[1:] and name not in sys.argv[1:]:
            continue
        start_s = time.process_time()
        result = search(load_unchecked(name, overrides), gpus, refines=True)
        processor_s = time.process_time() - start_s
        assert result.exact and result.refinement
        times_s = result.best.iteration_time_s, result.refinement.layout.iteration_time_s
        best, refined = (f"{time_s:.3f} s" for time_s in times_s)
        title = " ".join([name, f"on {gpus}", *overrides])
        counts = f"{result.num_legal:,} | {result.outcome.num_simulated:,}"
        print(f"| {title} | {counts} | {best} | {refined} | {processor_s:.1f} |", flush=True)


if __name__ == "__main__":
    main()
