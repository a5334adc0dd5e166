// Bars, line charts and number formats that all figures use.
"use strict";

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
  bars(plot, rows, scale, { marker } = {}) {
    plot.replaceChildren(...rows.map((row) => {
      const total = row.parts.reduce((sum, [, value]) => sum + value, 0);
      const track = simtrain.element("div", { class: "track" });
      let start = 0;
      for (const [colour, value, title] of row.parts) {
        const shown = Math.min(value, scale - start);
        if (shown > 0) track.append(simtrain.element("span", { title, style: { "--fill": colour, width: `${100 * shown / scale}%` } }));
        start += Math.max(shown, 0);
      }
      if (total > scale) track.append(simtrain.element("span", { class: "beyond", "aria-hidden": "true" }, "›"));
      if (marker !== undefined) track.append(simtrain.element("i", { class: "limit", style: { left: `${100 * marker / scale}%` } }));
      if (row.paper) track.append(simtrain.element("i", { class: "diamond", title: "the paper's measurement", style: { left: `${100 * row.paper / scale}%` } }));
      return simtrain.element("div", { class: `row${row.faint ? " faint" : ""}` },
        simtrain.element("span", { class: "name" }, ...[row.name].flat()), track, simtrain.element("span", { class: "words" }, ...row.words));
    }));
  },

  legend(...entries) {
    return simtrain.element("ul", { class: "legend" }, ...entries.map(([colour, words, shape = "swatch"]) =>
      simtrain.element("li", {}, simtrain.element("span", { class: shape, style: { "--fill": colour } }), ...[words].flat())));
  },

  // Draws a line chart. Axes: {from, to, ticks, log, text, title}; series: {colour, points, dashed, dots};
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
    for (const { colour, points, dashed, dots } of series) {
      const path = points.map(([a, b]) => `${px(a).toFixed(1)},${py(b).toFixed(1)}`).join(" ");
      drawing.append(simtrain.svg("polyline", { points: path, class: dashed ? "line dashed" : "line", style: { stroke: colour } }));
      if (dots) for (const [a, b] of points) drawing.append(simtrain.svg("circle", { cx: px(a), cy: py(b), r: 5, class: "dot", style: { fill: colour } }));
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
