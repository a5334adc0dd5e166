// Section 3: bytes of a layer for each strategy, relative to the tensor-parallel baseline.
"use strict";

explore.figures.push((setting) => {
  const { sizes, model } = setting, { strategies } = explore.data;
  const bytes = Object.fromEntries(Object.entries(strategies).map(([name, { split, recompute }]) =>
    [name, explore.layerBytes(sizes.t > 1 ? split : "tensor", recompute, sizes)]));
  const whole = bytes.baseline, present = bytes["selective+sequence"];
  explore.bars(explore.plot("ladder"), Object.entries(bytes).map(([name, value]) => ({
    name: explore.names[name],
    parts: [[explore.colours[name], value, simtrain.bytes(value)]],
    words: [explore.bold(simtrain.number(value / whole, simtrain.percent(value / whole))), " ", explore.bytes(value)],
  })), whole);
  const subject = explore.isTable3(setting) ? `the ${model} model` : "these sizes";
  explore.say("ladder", `For ${subject} over ${sizes.t} rank${sizes.t > 1 ? "s" : ""}, both techniques leave `,
    explore.bold(simtrain.percent(present / whole)), " of the baseline: ", explore.bold(`a factor of ${(whole / present).toFixed(1)} less`),
    `, and ${(present / bytes.full).toFixed(1)} times what full recompute keeps.`);
});
