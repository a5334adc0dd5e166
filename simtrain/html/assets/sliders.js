// Computes the iteration time for the chosen rates, bandwidths and latencies, with engine.js.
//
// After each move the script dispatches the event "simtrain-times" on the document. Its detail has
// the pointer of the run, `isMoved` (whether any slider is off its base), the iteration's seconds,
// the starts and ends of its tasks, `bars`, which returns the bars of its timeline, and
// `memoryTimes`, which returns the times of its memory over time.
"use strict";

for (const form of document.querySelectorAll("form.sliders")) {
  const { sliders: data, result } = simtrain.at(form.dataset.run);
  const { time, change, mfu } = form.elements;
  const inputs = [...form.querySelectorAll("input")];
  let iteration = null;
  let isWaiting = false;

  const describe = (input) => {
    const output = input.nextElementSibling;
    simtrain.writeSentence(output, `${input.dataset.slider}/positions/${input.value}`);
    input.setAttribute("aria-valuetext", output.textContent);
    input.dataset.ariaValuetext = output.innerHTML;
  };

  // Writes a computed number into an output: full precision as the value, and rounded text.
  const show = (output, value, text) => {
    const place = `${form.dataset.run}/sliders`;
    output.replaceChildren(simtrain.number(value, text, { computed: place }));
  };

  const showTimes = (positions, seconds) => {
    const base = result.iteration_time_s;
    const utilization = (result.mfu * (base / seconds)) / data.factors[positions.compute ?? data.base];
    const share = seconds / base - 1;
    // A smaller change is a rounding error.
    const words = Math.abs(share) < 1e-9 ? "none" : `${simtrain.percent(Math.abs(share))} ${share < 0 ? "shorter" : "longer"}`;
    show(time, seconds, simtrain.seconds(seconds));
    show(change, share, words);
    show(mfu, utilization, simtrain.percent(utilization));
  };

  const compute = async () => {
    // Preparing takes longer than computing a time, so it waits for the first move.
    iteration ??= simtrain.engine.prepared(data);
    const find = await iteration;
    isWaiting = false;
    const positions = Object.fromEntries(inputs.map(({ name, value }) => [name, Number(value)]));
    const begin = performance.now();
    const times = find(positions);
    const seconds = simtrain.engine.lastOf(times.ends);
    performance.measure("simtrain-sliders", { start: begin });
    showTimes(positions, seconds);
    const isMoved = Object.values(positions).some((place) => place !== data.base);
    const detail = { run: form.dataset.run, isMoved, seconds, ...times };
    document.dispatchEvent(new CustomEvent("simtrain-times", { detail }));
  };

  const moved = () => {
    inputs.forEach(describe);
    if (isWaiting) return;
    isWaiting = true;
    requestAnimationFrame(compute);
  };

  form.addEventListener("input", moved);
  // The inputs change after the reset event.
  form.addEventListener("reset", () => setTimeout(moved));
  form.addEventListener("submit", (event) => event.preventDefault());
  inputs.forEach(describe);
  form.hidden = false;
}
