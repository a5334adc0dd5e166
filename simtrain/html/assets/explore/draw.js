// Elements, bars, line charts and number formats that all figures use.
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

  // Builds an HTML element with attributes; `style` is an object of CSS properties.
  html(tag, properties = {}, ...children) {
    return this.filled(document.createElement(tag), properties, children);
  },
  svg(tag, properties = {}, ...children) {
    return this.filled(document.createElementNS("http://www.w3.org/2000/svg", tag), properties, children);
  },
  filled(element, properties, children) {
    for (const [name, value] of Object.entries(properties)) {
      if (name === "style") Object.entries(value).forEach(([key, one]) => element.style.setProperty(key, one));
      else element.setAttribute(name, value);
    }
    element.append(...children);
    return element;
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
  // Builds a number that is shown as text and has its full precision as value.
  number(value, text) {
    return this.html("data", { value }, text);
  },
  bytes(value) {
    return this.number(value, simtrain.bytes(value));
  },

  // Writes a term in the paper's notation, such as 2as²b/t.
  formula({ coefficient, powers }) {
    const written = this.html("span", { class: "formula" }, coefficient === 1 ? "" : String(coefficient));
    for (const name of ["a", "s", "b", "h"]) {
      if (!powers[name]) continue;
      written.append(this.html("var", {}, name));
      if (powers[name] > 1) written.append(this.html("sup", {}, String(powers[name])));
    }
    if (powers.t) written.append("/", this.html("var", {}, "t"));
    return written;
  },

  // Draws rows with a name, a bar of parts, and text. `scale` is the value at the full width.
  bars(plot, rows, scale, { marker } = {}) {
    plot.replaceChildren(...rows.map((row) => {
      const total = row.parts.reduce((sum, [, value]) => sum + value, 0);
      const track = this.html("div", { class: "track" });
      let start = 0;
      for (const [colour, value, title] of row.parts) {
        const shown = Math.min(value, scale - start);
        if (shown > 0) track.append(this.html("span", { title, style: { "--fill": colour, width: `${100 * shown / scale}%` } }));
        start += Math.max(shown, 0);
      }
      if (total > scale) track.append(this.html("span", { class: "beyond", "aria-hidden": "true" }, "›"));
      if (marker !== undefined) track.append(this.html("i", { class: "limit", style: { left: `${100 * marker / scale}%` } }));
      if (row.paper) track.append(this.html("i", { class: "diamond", title: "the paper's measurement", style: { left: `${100 * row.paper / scale}%` } }));
      return this.html("div", { class: `row${row.faint ? " faint" : ""}` },
        this.html("span", { class: "name" }, ...[row.name].flat()), track, this.html("span", { class: "words" }, ...row.words));
    }));
  },

  legend(...entries) {
    return this.html("ul", { class: "legend" }, ...entries.map(([colour, words, shape = "swatch"]) =>
      this.html("li", {}, this.html("span", { class: shape, style: { "--fill": colour } }), ...[words].flat())));
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
    const drawing = this.svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": label });
    const text = (words, at, cls, anchor = "middle") => this.svg("text", { ...at, class: cls, "text-anchor": anchor }, words);
    for (const value of y.ticks) {
      drawing.append(this.svg("line", { x1: left, x2: width - right, y1: py(value), y2: py(value), class: "grid" }),
        text(y.text(value), { x: left - 8, y: py(value) + 4 }, "tick", "end"));
    }
    const room = Math.floor((width - left - right) / 46);
    x.ticks.forEach((value, number) => {
      if (number % Math.ceil(x.ticks.length / room)) return;
      drawing.append(text(x.text(value), { x: px(value), y: height - bottom + 18 }, "tick"));
    });
    drawing.append(this.svg("line", { x1: left, x2: width - right, y1: height - bottom, y2: height - bottom, class: "axis" }),
      text(x.title, { x: (left + width - right) / 2, y: height - 6 }, "tick"));
    if (here !== undefined) drawing.append(this.svg("line", { x1: px(here), x2: px(here), y1: top, y2: height - bottom, class: "here" }));
    for (const { colour, points, dashed, dots } of series) {
      const path = points.map(([a, b]) => `${px(a).toFixed(1)},${py(b).toFixed(1)}`).join(" ");
      drawing.append(this.svg("polyline", { points: path, class: dashed ? "line dashed" : "line", style: { stroke: colour } }));
      if (dots) for (const [a, b] of points) drawing.append(this.svg("circle", { cx: px(a), cy: py(b), r: 5, class: "dot", style: { fill: colour } }));
    }
    for (const { x: a, y: b, text: words, below } of marks) {
      const anchor = px(a) > width - 130 ? "end" : px(a) < left + 60 ? "start" : "middle";
      drawing.append(this.svg("circle", { cx: px(a), cy: py(b), r: 6, class: "mark" }),
        text(words, { x: px(a), y: py(b) + (below ? 24 : -13) }, "marked", anchor));
    }
    plot.replaceChildren(drawing);
  },

  // Returns about five round numbers from 0 to `to`.
  steps(to) {
    const rough = to / 5, unit = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((one) => one * unit).find((one) => one >= rough);
    return Array.from({ length: Math.floor(to / step + 1e-9) + 1 }, (_, number) => number * step);
  },
  tokens(value) {
    return value >= 1024 ? `${value / 1024}K` : String(value);
  },
  say(name, ...words) {
    document.getElementById(`${name}-words`).replaceChildren(...words);
  },
  bold(...words) {
    return this.html("strong", {}, ...words);
  },
});
