// Shows simulated iterations with less and more of one resource. Each position of a slider is a point
// of the data, whose numbers the script writes into the page.
"use strict";

for (const form of document.querySelectorAll("form.sliders")) {
  const { time, change, mfu } = form.elements, { curves } = simtrain.dataOf(form);
  const inputs = [...form.querySelectorAll("input")];
  const bars = form.querySelector(".two-bars"), bar = bars.querySelector(".chosen");
  const marks = [...form.parentElement.querySelectorAll("[data-point]")];

  const describe = (input) => {
    const output = input.nextElementSibling;
    simtrain.writeSentence(output, curves[input.name][input.value].label);
    input.setAttribute("aria-valuetext", output.textContent);
  };

  const write = (element, value, text) => element.replaceChildren(simtrain.number(value, text));
  const changeText = (value) =>
    Math.abs(value) < 1e-9 ? "none" : `${(100 * Math.abs(value)).toFixed(2)}% ${value < 0 ? "shorter" : "longer"}`;

  // Shows the point of a slider's position, and moves the other sliders to the simulated cluster.
  const show = (input) => {
    for (const other of inputs) if (other !== input) other.value = form.dataset.base;
    inputs.forEach(describe);
    const point = curves[input.name][input.value], place = `${input.name} ${input.value}`;
    write(time, point.iteration_time_s, simtrain.seconds(point.iteration_time_s));
    write(change, point.change, changeText(point.change));
    write(mfu, point.mfu, simtrain.percent(point.mfu));
    for (const cell of form.querySelectorAll("[data-cause]")) {
      const name = cell.dataset.cause;
      const seconds = name === "iteration" ? point.iteration_time_s : point.breakdown_s[name];
      write(cell, seconds, simtrain.seconds(seconds));
    }
    bar.style.width = `${100 * point.iteration_time_s / Number(bars.dataset.longest)}%`;
    for (const part of bar.children) {
      const seconds = point.breakdown_s[part.dataset.part];
      part.style.flexGrow = seconds;
      part.hidden = seconds === 0;
    }
    for (const mark of marks) mark.classList.toggle("chosen", mark.dataset.point === place);
  };

  form.addEventListener("input", ({ target }) => show(target));
  // The inputs change after the reset event.
  form.addEventListener("reset", () => setTimeout(() => show(inputs[0])));
  form.addEventListener("submit", (event) => event.preventDefault());
  show(inputs[0]);
  form.hidden = false;
}
