// Section 1: activations of one layer, tensor by tensor.
"use strict";

{
  const kinds = {
    norm: ["layer norms", "var(--sky)"], attention: ["attention, linear part", "var(--blue)"],
    scores: ["attention core: softmax and its dropout", "var(--vermillion)"],
    mlp: ["MLP", "var(--green)"], mask: ["dropout masks", "var(--yellow)"],
  };
  const { data } = explore;
  const named = (terms) => new Map(terms.map((term) => [term.tensor, term]));

  const strip = (kept, sizes, whole) => {
    const sums = Object.keys(kinds).map((kind) => {
      const terms = [...kept.values()].filter(({ tensor }) => data.tensors[tensor].kind === kind);
      return [kind, terms.reduce((sum, term) => sum + explore.termBytes(term, sizes), 0)];
    });
    const bar = simtrain.element("div", { class: "strip", "aria-hidden": "true" });
    for (const [kind, value] of sums) {
      bar.append(simtrain.element("span", { style: { "--fill": kinds[kind][1], width: `${100 * value / whole}%` } }));
    }
    return [bar, explore.legend(...sums.map(([kind, value]) =>
      [kinds[kind][1], [`${kinds[kind][0]}: `, explore.bytes(value), ` (${simtrain.percent(value / whole)})`]]))];
  };

  const row = (tensor, base, term, sizes, largest, isWhole) => {
    const { kind, role } = data.tensors[tensor], before = explore.termBytes(base, sizes);
    const value = term ? explore.termBytes(term, sizes) : 0;
    const track = simtrain.element("div", { class: "track" },
      simtrain.element("span", { class: "before", style: { width: `${100 * before / largest}%` } }));
    if (term) track.append(simtrain.element("span", { class: "now", style: { "--fill": kinds[kind][1], width: `${100 * value / largest}%` } }));
    const name = simtrain.element("span", { class: "name" }, role);
    if (isWhole) name.append(" ", simtrain.element("mark", {}, "whole on every rank"));
    return simtrain.element("div", { class: `row tensor${term ? "" : " faint"}`, "data-tensor": tensor },
      name, simtrain.element("span", { class: "of" }, explore.formula(term ?? base)), track,
      simtrain.element("span", { class: "words" }, ...(term ? [explore.bytes(value)] : ["computed again"])));
  };

  explore.figures.push((setting) => {
    const { sizes, recompute, model } = setting, split = explore.split(setting);
    const base = named(explore.terms("tensor", "none")), kept = named(explore.terms(split, recompute));
    const bytes = explore.layerBytes(split, recompute, sizes);
    const whole = explore.layerBytes("tensor", "none", sizes);
    const alone = explore.layerBytes("tensor", "none", { ...sizes, t: 1 });
    const largest = Math.max(...[...base.values()].map((term) => explore.termBytes(term, sizes)));
    const [linear, core] = [1, 2].map((degree) =>
      explore.layerBytes(split, recompute, sizes, explore.ofDegree(degree, split, recompute)) / (sizes.s * sizes.b * sizes.h));

    const total = document.getElementById("layer-bytes");
    total.value = String(bytes);
    total.textContent = simtrain.bytes(bytes);
    total.title = `${explore.count(bytes)} bytes`;
    const subject = explore.isTable3(setting) ? ` per layer and GPU. The ${model} model keeps ` : " per layer and GPU. These sizes keep ";
    const shares = sizes.t === 1 ? ["a layer on one GPU (Equation 1)."] : [
      "a layer on each of ", String(sizes.t), " ranks: ", explore.bold(simtrain.percent(bytes / whole)),
      " of tensor parallelism alone, ", simtrain.percent(bytes / alone), " of one GPU without parallelism."];
    explore.say("layer", subject, simtrain.element("var", {}, "sbh"),
      ` × (${explore.factor(linear)} + ${explore.factor(core)}) bytes `, ...shares);

    const note = document.getElementById("layer-note"), { wanted } = setting, notes = [];
    if (sizes.h !== wanted.h) notes.push(`h is ${explore.count(sizes.h)}, the multiple of ${sizes.a} heads nearest to ${explore.count(wanted.h)}.`);
    if (sizes.t !== wanted.t) notes.push(`t is ${sizes.t}: ${wanted.t} ranks do not divide ${sizes.a} heads.`);
    if (setting.sequence && sizes.t === 1) notes.push("Sequence parallelism needs at least two tensor-parallel ranks.");
    note.textContent = notes.join(" ");
    note.hidden = !notes.length;

    const rows = [];
    let block = "";
    for (const [tensor, about] of Object.entries(data.tensors)) {
      if (about.block !== block) rows.push(simtrain.element("h3", { class: "block" }, about.block));
      block = about.block;
      const term = kept.get(tensor);
      rows.push(row(tensor, base.get(tensor), term, sizes, largest, sizes.t > 1 && term && !term.powers.t));
    }
    explore.plot("layer").replaceChildren(...strip(kept, sizes, whole), ...rows);
  });
}
