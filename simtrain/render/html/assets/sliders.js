// Shows simulated iterations with less and more of one resource. Each position of a slider is a point
// of the data, whose numbers the script writes into the page.
"use strict";

for (const form of document.querySelectorAll("form.sliders")) {
  const { time, change, mfu } = form.elements;
  const inputs = [...form.querySelectorAll("input")];
  const bars = form.querySelector(".two-bars"), bar = bars.querySelector(".chosen");
  const marks = [...form.parentElement.querySelectorAll("[data-point]")];

  const describe = (input) => {
    const output = input.nextElementSibling;
    simtrain.writeSentence(output, `${input.dataset.points}/${input.value}/label`);
    input.setAttribute("aria-valuetext", output.textContent);
    input.dataset.ariaValuetext = output.innerHTML;
  };

  // Writes a number of the data into an element, as `text` formats it.
  const write = (element, at, text) => {
    const value = simtrain.at(at);
    element.replaceChildren(simtrain.number(value, text(value), { at }));
  };
  const changeText = (value) =>
    Math.abs(value) < 1e-9 ? "none" : `${(100 * Math.abs(value)).toFixed(2)}% ${value < 0 ? "shorter" : "longer"}`;

  // Shows the point of a slider's position, and moves the other sliders to the simulated cluster.
  const show = (input) => {
    for (const other of inputs) if (other !== input) other.value = form.dataset.base;
    inputs.forEach(describe);
    const pointer = `${input.dataset.points}/${input.value}`, point = simtrain.at(pointer);
    write(time, `${pointer}/iteration_time_s`, (value) => simtrain.seconds(value));
    write(change, `${pointer}/change`, changeText);
    write(mfu, `${pointer}/mfu`, (value) => simtrain.percent(value));
    for (const cell of form.querySelectorAll("[data-cause]")) {
      const name = cell.dataset.cause;
      write(cell, `${pointer}/${name === "iteration" ? "iteration_time_s" : `breakdown_s/${name}`}`, (value) => simtrain.seconds(value));
    }
    bar.style.width = `${100 * point.iteration_time_s / Number(bars.dataset.longest)}%`;
    for (const part of bar.children) {
      const seconds = point.breakdown_s[part.dataset.part];
      part.style.flexGrow = seconds;
      part.hidden = seconds === 0;
    }
    for (const mark of marks) mark.classList.toggle("chosen", mark.dataset.point === pointer);
  };

  form.addEventListener("input", ({ target }) => show(target));
  // The inputs change after the reset event.
  form.addEventListener("reset", () => setTimeout(() => show(inputs[0])));
  form.addEventListener("submit", (event) => event.preventDefault());
  show(inputs[0]);
  form.hidden = false;
}
