// State of all figures: the setting that controls change, and the bytes of a layer for it.
"use strict";

const explore = {
  data: simtrain.data,
  figures: [], // functions that draw one figure each for the setting
  setting: {
    model: "175B", wanted: {}, sizes: {}, sequence: false, recompute: "none",
    length: 2048, microbatch: 1, pipeline: 8,
  },

  // Changes the setting and draws all figures. `sizes` are the sizes chosen by the user.
  change({ sizes = {}, ...changes }) {
    const { setting, data } = this;
    if (changes.model) {
      const table3 = data.models[changes.model];
      Object.assign(setting, { microbatch: table3.b, pipeline: data.pipelines[changes.model] });
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
