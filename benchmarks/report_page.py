"""Measure reports in Chromium: their size, and the time to write, open and zoom."""

import pathlib
import statistics
import tempfile
import time

import simtrain
from simtrain.scenario import load_scenario
from simtrain.studies.simulation import simulate
from tests.helpers.browser import MISSING, Browser, chromium

ROUNDS = 15
CASES = {
    "table5_175b_present": (),
    "table5_530b_full": (),
    "dp530b": ("overlap.data_parallel=true",),
    "table5_1t_full": (),
}
# The page itself measures redraws, without the wait for a frame.
_ZOOM = """
await simtrain.timeline.ready;
const { view, setView, charts } = simtrain.timeline, whole = view.end;
const frame = () => new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve)));
charts[0].canvas.scrollIntoView();
performance.clearMeasures();
for (let round = 0; round < args[0]; round++) {
  const length = whole * 0.7 ** round;
  setView(whole / 3, length);
  await frame();
}
return performance.getEntriesByName("simtrain-timeline").map((one) => one.duration);
"""


def measure(browser: Browser, name: str, changes: tuple[str, ...], file: pathlib.Path) -> None:
    """Measure one report, and print its row of the table."""
    result = simulate(load_scenario(name, changes))
    start = time.perf_counter()
    simtrain.report(result, file)
    write_s = time.perf_counter() - start
    start = time.perf_counter()
    browser.open(file)
    browser.run("await simtrain.timeline.ready")
    open_s = time.perf_counter() - start
    zoom_ms = browser.run(_ZOOM, ROUNDS)
    title = " ".join([name, *changes])
    print(
        f"| {title} | {result.timeline.program.num_tasks:,} | {file.stat().st_size / 1e6:.2f} "
        f"| {write_s:.1f} | {open_s:.1f} | {statistics.median(zoom_ms):.0f}, {max(zoom_ms):.0f} |"
    )


def main() -> None:
    if MISSING:
        raise SystemExit(f"not found: {' and '.join(MISSING)}")
    print("| report | tasks | MB | s to write | s to open | ms to zoom |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        place = pathlib.Path(folder)
        with chromium(place / "chromium") as browser:
            for name, changes in CASES.items():
                measure(browser, name, changes, place / "report.html")


if __name__ == "__main__":
    main()
