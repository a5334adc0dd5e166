// The page of `simtrain reproduce explore`: the setting that its controls change, the bytes of a layer for it, and
// its figures.
"use strict";

const explore = {
  data: simtrain.data,
  figures: [], // functions that draw one figure each for the setting
  setting: {
    model: "175B", wanted: {}, sizes: {}, sequence: false, recompute: "none",
    length: 2048,
  },

  // Changes the setting and draws all figures. `sizes` are the sizes chosen by the user.
  change({ sizes = {}, ...changes }) {
    const { setting, data } = this;
    if (changes.model) {
      const table3 = data.models[changes.model];
      sizes = { ...table3, t: setting.wanted.t ?? table3.t };
    }
    Object.assign(setting, changes);
    Object.assign(setting.wanted, sizes);
    setting.sizes = this.legal(setting.wanted);
    this.draw();
  },

  draw() {
    for (const figure of this.figures) figure(this.setting);
  },

  // Returns the nearest sizes that the framework allows: t divides a, and a divides h.
  legal({ s, b, h, a, t }) {
    const ranks = this.data.sliders.t.filter((one) => one <= t && a % one === 0);
    return { s, b, a, t: Math.max(...ranks), h: Math.max(1, Math.round(h / a)) * a };
  },

  // Whether all sizes except t equal those of the model in Table 3.
  isTable3({ model, sizes }) {
    return ["s", "b", "h", "a"].every((name) => this.data.models[model][name] === sizes[name]);
  },

  // Sequence parallelism needs at least two ranks.
  split({ sequence, sizes }) {
    return sequence && sizes.t > 1 ? "sequence" : "tensor";
  },

  terms(split, recompute) {
    return this.data.terms[split][recompute];
  },

  // Bytes of a term: its coefficient times each variable to its power. The result is exact: products
  // are integers below 2^53, and the only division has no remainder.
  termBytes({ coefficient, powers }, sizes) {
    let over = coefficient, under = 1;
    for (const [name, power] of Object.entries(powers)) {
      if (power > 0) over *= sizes[name] ** power;
      else under *= sizes[name] ** -power;
    }
    return over / under;
  },

  layerBytes(split, recompute, sizes, terms = this.terms(split, recompute)) {
    return terms.reduce((sum, term) => sum + this.termBytes(term, sizes), 0);
  },

  // Returns the terms that grow with s (degree 1) or with s² (degree 2).
  ofDegree(degree, split, recompute) {
    return this.terms(split, recompute).filter(({ powers }) => powers.s === degree);
  },

  // Sequence length at which the terms that grow with s² equal the others.
  crossing(split, sizes) {
    const [linear, core] = [1, 2].map((degree) =>
      this.layerBytes(split, "none", { ...sizes, s: 1 }, this.ofDegree(degree, split, "none")));
    return linear / core;
  },
};

// Bars, line charts and number formats that all figures use.
Object.assign(explore, {
  colours: { // of strategies
    "baseline": "var(--purple)", "sequence": "var(--blue)", "selective": "var(--orange)",
    "selective+sequence": "var(--green)", "full": "var(--grey)",
  },
  names: {
    "baseline": "tensor parallel alone", "sequence": "sequence parallel",
    "selective": "selective recompute", "selective+sequence": "both (present work)",
    "full": "full recompute",
  },

  plot(name) {
    return document.getElementById(`${name}-plot`);
  },

  count(value, digits = 0) {
    return value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });
  },
  // Formats a factor with at most two decimals: 34, 4.25.
  factor(value) {
    return value.toLocaleString("en-US", { maximumFractionDigits: 2 });
  },
  signed(share) {
    return `${share < 0 ? "−" : "+"}${(100 * Math.abs(share)).toFixed(1)}%`;
  },
  bytes(value) {
    return simtrain.number(value, simtrain.bytes(value));
  },

  // Writes a term in the paper's notation, such as 2as²b/t.
  formula({ coefficient, powers }) {
    const written = simtrain.element("span", { class: "formula" }, coefficient === 1 ? "" : String(coefficient));
    for (const name of ["a", "s", "b", "h"]) {
      if (!powers[name]) continue;
      written.append(simtrain.element("var", {}, name));
      if (powers[name] > 1) written.append(simtrain.element("sup", {}, String(powers[name])));
    }
    if (powers.t) written.append("/", simtrain.element("var", {}, "t"));
    return written;
  },

  // Draws rows with a name, a bar of parts, and text. `scale` is the value at the full width.
  bars(plot, rows, scale) {
    plot.replaceChildren(...rows.map((row) => {
      const track = simtrain.element("div", { class: "track" });
      for (const [colour, value, title] of row.parts) {
        track.append(simtrain.element("span", { title, style: { "--fill": colour, width: `${100 * value / scale}%` } }));
      }
      if (row.paper) track.append(simtrain.element("i", { class: "diamond", title: "the paper's measurement", style: { left: `${100 * row.paper / scale}%` } }));
      return simtrain.element("div", { class: "row" },
        simtrain.element("span", { class: "name" }, ...[row.name].flat()), track, simtrain.element("span", { class: "words" }, ...row.words));
    }));
  },

  legend(...entries) {
    return simtrain.element("ul", { class: "legend" }, ...entries.map(([colour, words, shape = "swatch"]) =>
      simtrain.element("li", {}, simtrain.element("span", { class: shape, style: { "--fill": colour } }), ...[words].flat())));
  },

  // Draws a line chart. Axes: {from, to, ticks, log, text, title}; series: {colour, points, dashed};
  // marks: {x, y, text, below}; `here`: an x that a vertical line marks.
  chart(plot, { x, y, series, marks = [], here, label, height }) {
    const width = Math.max(plot.clientWidth, 280), left = 64, right = 22, top = 14, bottom = 46;
    const place = ({ from, to, log }, start, end) => (value) => {
      const [low, high, at] = log ? [from, to, value].map(Math.log) : [from, to, value];
      return start + (end - start) * (at - low) / (high - low);
    };
    const px = place(x, left, width - right), py = place(y, height - bottom, top);
    const drawing = simtrain.svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": label });
    const text = (words, at, cls, anchor = "middle") => simtrain.svg("text", { ...at, class: cls, "text-anchor": anchor }, words);
    for (const value of y.ticks) {
      drawing.append(simtrain.svg("line", { x1: left, x2: width - right, y1: py(value), y2: py(value), class: "grid" }),
        text(y.text(value), { x: left - 8, y: py(value) + 4 }, "tick", "end"));
    }
    const room = Math.floor((width - left - right) / 46);
    x.ticks.forEach((value, number) => {
      if (number % Math.ceil(x.ticks.length / room)) return;
      drawing.append(text(x.text(value), { x: px(value), y: height - bottom + 18 }, "tick"));
    });
    drawing.append(simtrain.svg("line", { x1: left, x2: width - right, y1: height - bottom, y2: height - bottom, class: "axis" }),
      text(x.title, { x: (left + width - right) / 2, y: height - 6 }, "tick"));
    if (here !== undefined) drawing.append(simtrain.svg("line", { x1: px(here), x2: px(here), y1: top, y2: height - bottom, class: "here" }));
    for (const { colour, points, dashed } of series) {
      const path = points.map(([a, b]) => `${px(a).toFixed(1)},${py(b).toFixed(1)}`).join(" ");
      drawing.append(simtrain.svg("polyline", { points: path, class: dashed ? "line dashed" : "line", style: { stroke: colour } }));
    }
    for (const { x: a, y: b, text: words, below } of marks) {
      const anchor = px(a) > width - 130 ? "end" : px(a) < left + 60 ? "start" : "middle";
      drawing.append(simtrain.svg("circle", { cx: px(a), cy: py(b), r: 6, class: "mark" }),
        text(words, { x: px(a), y: py(b) + (below ? 24 : -13) }, "marked", anchor));
    }
    plot.replaceChildren(drawing);
  },

  tokens(value) {
    return value >= 1024 ? `${value / 1024}K` : String(value);
  },
  say(name, ...words) {
    document.getElementById(`${name}-words`).replaceChildren(...words);
  },
  bold(...words) {
    return simtrain.element("strong", {}, ...words);
  },
});

// Section 1: activations of one layer, tensor by tensor.
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

// Section 2: the sequence length at which the attention core exceeds the rest of the layer.
{
  const lengths = explore.data.sliders.s, [first, last] = [lengths[0], lengths.at(-1)];

  explore.figures.push((setting) => {
    const { sizes, model } = setting, divided = sizes.t > 1 ? "sequence" : "tensor";
    const bytes = (degree, split, s) =>
      explore.layerBytes(split, "none", { ...sizes, s }, explore.ofDegree(degree, split, "none"));
    const line = (degree, split) => [first, last].map((s) => [s, bytes(degree, split, s)]);
    const series = [
      { colour: "var(--green)", points: line(1, divided) },
      { colour: "var(--vermillion)", points: line(2, divided) },
    ];
    const splits = [divided];
    if (sizes.t > 1) {
      series.push({ colour: "var(--green)", points: line(1, "tensor"), dashed: true });
      splits.push("tensor");
    }
    const found = splits.map((split) => explore.crossing(split, sizes));
    const marks = found.map((s, number) => ({ s, number }))
      .filter(({ s }) => s >= first && s <= last)
      .map(({ s, number }) => ({ x: s, y: bytes(2, divided, s), text: `s = ${explore.count(s)}`, below: number === 0 }));
    const values = series.flatMap(({ points }) => points.map(([, value]) => value));
    const [from, to] = [Math.min(...values) / 1.3, Math.max(...values) * 1.3];
    const share = bytes(2, divided, sizes.s) / explore.layerBytes(divided, "none", sizes);
    const subject = explore.isTable3(setting) ? `the ${model} model` : "these sizes";
    const coefficients = [1, 2].map((degree) => explore.ofDegree(degree, divided, "none")
      .reduce((sum, { coefficient }) => sum + coefficient, 0));
    explore.say("crossing", `For ${subject}, ${coefficients[0]}`, simtrain.element("var", {}, "sbh"), ` = ${coefficients[1]}`,
      simtrain.element("var", {}, "as"), simtrain.element("sup", {}, "2"), simtrain.element("var", {}, "b"), " at ",
      explore.bold("s = ", simtrain.number(found[0], explore.count(found[0], 1)), " tokens"),
      ". At ", explore.count(sizes.s), " tokens the attention core is ", explore.bold(simtrain.percent(share)), " of the layer",
      ...(sizes.t > 1 ? [`. Tensor parallelism over ${sizes.t} ranks alone moves the crossing to `, simtrain.number(found[1], explore.count(found[1], 1)), "."] : ["."]));

    const units = [["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]];
    const ticks = units.flatMap(([, size]) => [1, 10, 100].map((one) => one * size)).filter((one) => one >= from && one <= to).sort((a, b) => a - b);
    explore.chart(explore.plot("crossing"), {
      x: { from: first, to: last, log: true, ticks: Array.from({ length: 10 }, (_, n) => 256 * 2 ** n), text: explore.tokens, title: "sequence length s, tokens" },
      y: { from, to, log: true, ticks, text: simtrain.bytes.bind(simtrain) },
      series, marks, here: sizes.s, height: 380,
      label: `The attention core exceeds the rest of the layer from ${explore.count(found[0], 1)} tokens.`,
    });
    explore.plot("crossing").append(explore.legend(
      ["var(--vermillion)", "attention core, grows with s²"],
      ["var(--green)", sizes.t > 1 ? "the rest, grows with s (sequence parallel)" : "the rest, grows with s"],
      ...(sizes.t > 1 ? [["var(--green)", "the rest under tensor parallelism alone", "swatch dashed"]] : [])));
  });
}

// Section 3: bytes of a layer for each strategy, relative to the tensor-parallel baseline.
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

// Section 4: time of a layer with and without recompute.
{
  const { data } = explore;
  const total = ({ forward_s, backward_s, recompute_s }) => forward_s + backward_s + recompute_s;
  const colours = { forward_s: "var(--sky)", backward_s: "var(--blue)", recompute_s: "var(--vermillion)" };
  const words = { none: "nothing recomputed", selective: "selective recompute", full: "full recompute" };
  const strategyOf = (split, recompute) => Object.keys(data.strategies).find((name) =>
    data.strategies[name].split === split && data.strategies[name].recompute === recompute);
  const milliseconds = (time) => `${(1e3 * time).toPrecision(3)} ms`;

  // The paper's time of a bar, if published: measured for 22B, derived from the overhead for others.
  const published = (model, length, split, recompute, baseline) => {
    const name = strategyOf(split, recompute);
    if (length !== data.models[model].s || !name) return undefined;
    if (model === "22B") return data.paper.table4_s[name].forward + data.paper.table4_s[name].backward;
    const overhead = data.paper.overheads[model]?.[name];
    return overhead === undefined ? undefined : baseline * (1 + overhead);
  };

  explore.figures.push((setting) => {
    const model = data.tax[setting.model] ? setting.model : Object.keys(data.tax)[0];
    const { length, sequence } = setting, split = sequence ? "sequence" : "tensor", at = data.lengths.indexOf(length);
    const tax = data.tax[model], baseline = total(tax.tensor.none[at]);
    const cases = [["tensor", "none"], ...["none", "selective", "full"].map((recompute) => [split, recompute])]
      .filter(([one, recompute], number) => number === 0 || one !== "tensor" || recompute !== "none");
    const rows = cases.map(([one, recompute], number) => {
      const layer = tax[one][recompute][at], paper = published(model, length, one, recompute, baseline);
      const over = total(layer) / baseline - 1, paperOver = paper && paper / (published(model, length, "tensor", "none", baseline) ?? baseline) - 1;
      return {
        name: number === 0 ? "baseline: tensor parallel, nothing recomputed" : `${words[recompute]}${sequence ? ", sequence parallel" : ""}`,
        parts: Object.entries(colours).map(([name, colour]) => [colour, layer[name], `${name.replace("_s", "")}: ${milliseconds(layer[name])}`]),
        words: [explore.bold(simtrain.number(total(layer), milliseconds(total(layer)))), ...(number ? [` ${explore.signed(over)}`] : []),
          ...(number && paper ? [simtrain.element("small", {}, ` paper ${explore.signed(paperOver).replace(".0", "")}`)] : [])],
        paper,
      };
    });
    const scale = 1.04 * Math.max(...cases.flatMap(([one, recompute]) => [total(tax[one][recompute][at]), published(model, length, one, recompute, baseline) ?? 0]));
    explore.bars(explore.plot("tax"), rows, scale);
    explore.plot("tax").append(explore.legend([colours.forward_s, "forward"], [colours.backward_s, "backward"],
      [colours.recompute_s, "recompute, with the collectives that it exposes"],
      ...(rows.some(({ paper }) => paper) ? [["", "the paper's measurement", "diamond"]] : [])));

    const sizes = { ...data.models[model], s: length };
    const kept = (recompute) => explore.layerBytes(split, recompute, sizes);
    const freed = (recompute) => simtrain.percent(1 - kept(recompute) / kept("none"));
    const again = (recompute) => simtrain.percent(tax[split][recompute][at].recompute_flops / tax[split][recompute][at].forward_flops);
    const cost = (recompute) => explore.signed(total(tax[split][recompute][at]) / baseline - 1);
    explore.say("tax", `For the ${model} model at ${explore.count(length)} tokens, selective recompute frees `, explore.bold(freed("selective")),
      ` of the layer's bytes, runs ${again("selective")} of the forward pass's FLOPs again, and changes the time of the baseline by `,
      explore.bold(cost("selective")), ". Full recompute frees ", explore.bold(freed("full")), ` and changes it by `, explore.bold(cost("full")), ".",
      simtrain.element("span", { class: "soft" }, ` Of the ${tax[split].selective[at].num_ops} ops with selective recompute, ${tax[split].selective[at].num_extrapolated} are outside the range on which the profile was fitted (extrapolated).`));
  });
}

// Connects the controls to the setting. Controls of the same setting in several figures move together.
{
  const { data, setting } = explore;
  const lists = { ...data.sliders, length: data.lengths };
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
}
