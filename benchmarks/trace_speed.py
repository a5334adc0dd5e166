"""Measure the time to write traces of the 530B iteration, and their size.

Run it with `python -m benchmarks.trace_speed`.
"""

import pathlib
import tempfile
import time

import simtrain
from simtrain.render.traces.write import write_trace


def main() -> None:
    result = simtrain.simulate(simtrain.load_scenario("table5_530b_present"))
    print(f"{len(result.plan.schedule.kind):,} passes, {result.timeline.program.num_tasks:,} tasks")
    with tempfile.TemporaryDirectory() as folder:
        for suffix in (".json", ".json.gz", ".pftrace"):
            file = pathlib.Path(folder) / f"trace{suffix}"
            seconds = []
            for _ in range(3):
                start_s, start_cpu_s = time.perf_counter(), time.process_time()
                write_trace(result, file)
                now_s = time.perf_counter() - start_s, time.process_time() - start_cpu_s
                seconds.append(now_s)
            fastest, processor = map(min, zip(*seconds, strict=True))
            size = file.stat().st_size / 1e6
            print(f"{suffix}: {fastest:.2f} s ({processor:.2f} s of a processor), {size:.1f} MB")


if __name__ == "__main__":
    main()
