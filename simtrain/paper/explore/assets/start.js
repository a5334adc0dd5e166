// Connects the controls to the setting. Controls of the same setting in several figures move together.
"use strict";

{
  const { data, setting } = explore;
  const lists = { ...data.sliders, length: data.lengths, microbatch: data.microbatches };
  const all = (selector) => [...document.querySelectorAll(selector)];
  const nearest = (list, value) => list.reduce((best, one, index) => (Math.abs(one - value) < Math.abs(list[best] - value) ? index : best), 0);

  const step = () => {
    if (setting.sizes.t === 1) return setting.recompute === "none" ? "alone" : "";
    return Object.keys(data.strategies).find((name) => data.strategies[name].split === explore.split(setting) && data.strategies[name].recompute === setting.recompute) ?? "";
  };
  const take = (name) => {
    if (name === "alone") return explore.change({ sizes: { t: 1 }, sequence: false, recompute: "none" });
    const { split, recompute } = data.strategies[name];
    const ranks = setting.sizes.t > 1 ? setting.wanted.t : data.models[setting.model].t;
    return explore.change({ sizes: { t: ranks }, sequence: split === "sequence", recompute });
  };

  for (const input of all("[data-slider]")) {
    const name = input.dataset.slider, list = lists[name];
    input.addEventListener("input", () => {
      const value = list[Number(input.value)];
      explore.change(name in data.sliders ? { sizes: { [name]: value } } : { [name]: value });
    });
  }
  for (const input of all("[data-choice]")) {
    const name = input.dataset.choice;
    input.addEventListener("change", () => (name === "step" ? take(input.value) : explore.change({ [name]: input.value })));
  }
  for (const input of all("[data-switch]")) {
    input.addEventListener("change", () => explore.change({ [input.dataset.switch]: input.checked }));
  }

  explore.figures.push(() => {
    for (const input of all("[data-slider]")) {
      const name = input.dataset.slider, isSize = name in data.sliders;
      const text = explore.count(isSize ? setting.sizes[name] : setting[name]);
      input.value = nearest(lists[name], isSize ? setting.wanted[name] : setting[name]);
      input.setAttribute("aria-valuetext", text);
      document.querySelector(`output[for="${input.id}"]`).textContent = text;
    }
    const values = { step: step(), recompute: setting.recompute };
    for (const input of all("[data-choice]")) {
      const name = input.dataset.choice;
      if (name !== "model") input.checked = input.value === values[name];
      else {
        const isFree = ["layer", "crossing", "ladder"].includes(input.name.split("-")[0]);
        input.checked = input.value === setting.model && (!isFree || explore.isTable3(setting));
      }
    }
    for (const input of all("[data-switch]")) input.checked = setting.sequence;
  });

  // A setting changes several figures. Screen readers announce only the figure whose controls are used.
  document.addEventListener("focusin", ({ target }) => {
    const bench = target.closest(".bench");
    for (const answer of all(".answer")) answer.ariaLive = answer.closest(".bench") === bench ? "polite" : "off";
  });

  explore.change({ model: setting.model });
  // Charts have a fixed width in pixels, so they are drawn again when the window is resized.
  let width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth !== width) explore.draw();
    width = innerWidth;
  });
  simtrain.onPrint(() => explore.draw());
}
