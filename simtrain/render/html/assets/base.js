// Shared by all documents: the page's data, formatting of numbers, and the light or dark theme.
"use strict";

const simtrain = {
  // The data of the page in full precision.
  data: JSON.parse(document.getElementById("data").textContent),

  // Formats a value with four digits, in the largest unit in which it is at least 1.
  scaled(value, units) {
    const [name, size] = units.find(([, size]) => Math.abs(value) >= size) ?? units.at(-1);
    return `${this.fourDigits(value / size)} ${name}`;
  },
  // Formats a number with four significant digits; zeros at the end show that it is rounded.
  fourDigits(value) {
    const rounded = Number(value.toPrecision(4));
    const isExact = Math.abs(rounded - value) <= 1e-9 * Math.abs(value);
    return isExact || Math.abs(value) >= 1000 ? String(rounded) : value.toPrecision(4);
  },
  seconds(value) {
    if (Math.abs(value) < 1e-12) return "0 s";
    return this.scaled(value, [["s", 1], ["ms", 1e-3], ["µs", 1e-6], ["ns", 1e-9]]);
  },
  bytes(value) {
    return this.scaled(value, [["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 1024], ["B", 1]]);
  },
  exact(value) {
    return String(Number(value.toPrecision(9)));
  },
  percent(value) {
    return `${(100 * value).toFixed(1)}%`;
  },

  // Builds an HTML element with attributes; `style` is an object of CSS properties.
  element(tag, properties = {}, ...children) {
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

  // Returns round numbers from `start` to `stop`, about `most` or fewer, and the step between them.
  ticks(start, stop, most) {
    const rough = (stop - start) / most, power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= rough) ?? 10 * power;
    const found = [];
    for (let place = Math.ceil(start / step); place * step <= stop; place++) found.push(place * step);
    return { found, step };
  },

  // Returns a <data> element with a number in full precision and its rounded text.
  number(value, text) { return this.element("data", { value }, text); },

  // Writes a text with its numbers (`sentence_json`) into an element.
  writeSentence(element, { text, numbers }) {
    let end = 0;
    element.replaceChildren();
    for (const number of numbers) {
      element.append(text.slice(end, number.start), this.number(number.value, number.text));
      end = number.start + number.text.length;
    }
    element.append(text.slice(end));
  },

  // Returns the data that an element contains for its script.
  dataOf(element) { return JSON.parse(element.querySelector('script[type="application/json"]').textContent); },

  // Decodes an array that `packing.packed` wrote into a typed array.
  async array({ dtype, zlib }) {
    const bytes = Uint8Array.from(atob(zlib), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    const planes = new Uint8Array(await new Response(stream).arrayBuffer());
    const Kind = { float64: Float64Array, int32: Int32Array, int16: Int16Array, uint8: Uint8Array }[dtype];
    const size = Kind.BYTES_PER_ELEMENT, count = planes.length / size;
    const mixed = new Uint8Array(planes.length);
    for (let plane = 0; plane < size; plane++) {
      for (let item = 0; item < count; item++) mixed[item * size + plane] = planes[plane * count + item];
    }
    return new Kind(mixed.buffer);
  },

  // Returns a variable of the style sheet, such as "--ink". Colours depend on the theme.
  style(name) {
    return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  },

  // Calls `redraw` when the theme changes between light and dark.
  onTheme(redraw) {
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
    document.addEventListener("simtrain-theme", redraw);
  },

  // Calls `redraw` before and after printing, because print always uses the light theme.
  onPrint(redraw) {
    addEventListener("beforeprint", redraw);
    addEventListener("afterprint", redraw);
  },
};

{
  const button = document.getElementById("theme");
  const root = document.documentElement;
  // Browsers may refuse storage to files opened from disk.
  const storage = {
    read: () => { try { return localStorage.getItem("simtrain-theme"); } catch { return null; } },
    write: (theme) => { try { localStorage.setItem("simtrain-theme", theme); } catch { /* the theme is not stored */ } },
  };
  const isDark = () => (root.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  const show = () => {
    button.textContent = isDark() ? "Light" : "Dark";
    button.setAttribute("aria-label", isDark() ? "Show the page in light colours" : "Show the page in dark colours");
    button.setAttribute("aria-pressed", String(isDark()));
  };
  const kept = storage.read();
  if (kept) root.dataset.theme = kept;
  button.hidden = false;
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    storage.write(root.dataset.theme);
    show();
    document.dispatchEvent(new Event("simtrain-theme"));
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
  show();
}
