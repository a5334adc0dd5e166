// Shared by all documents: the page's data, formatting of numbers, changes of the theme, and the card of a selected number.
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

  // Returns the data that an element contains for its script.
  dataOf(element) { return JSON.parse(element.querySelector('script[type="application/json"]').textContent); },

  // Decodes an array that `packed_arrays.packed` wrote into a typed array.
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
  },
};

// Shows the exact value and the source of a selected number: what it is, its row and column, and the
// command that prints it. Keyboard: the main figures take the focus. In a table that has the focus,
// Enter moves to its first number and the arrow keys to the others. Enter selects a number, Escape
// closes.
{
  const card = simtrain.element("aside", { id: "source", hidden: "", role: "status" });
  document.body.append(card);
  const element = (tag, ...words) => simtrain.element(tag, {}, ...words);
  let chosen = null;

  const close = () => {
    card.hidden = true;
    chosen?.focus?.();
    chosen = null;
  };

  // Returns what a table says about a number: heading and meaning of its column, and its row.
  const placeOf = (cell, table) => {
    const heading = table.tHead?.rows[0].cells[cell.cellIndex];
    const [first] = cell.parentElement.cells, { meaning } = heading?.dataset ?? {};
    const lines = [];
    if (heading) lines.push(element("p", element("strong", heading.textContent), meaning ? `: ${meaning}` : ""));
    if (first !== cell) lines.push(element("p", `Row: ${first.textContent}`));
    return lines;
  };

  // Returns the command that prints a number, with the column of the table that it stands in.
  const commandOf = (number, table, cell) => {
    const command = number.closest("[data-command]")?.dataset.command;
    if (!command) return [];
    const name = table?.tHead?.rows[0].cells[cell.cellIndex]?.dataset.name;
    const words = name ? `${command} --format csv --table ${table.dataset.table}` : command;
    return [element("p", "Printed by ", element("code", words), name ? ` in the column ${name}` : "")];
  };

  const linesOf = (number) => {
    const cell = number.closest("td, th"), table = cell?.closest("table[data-table]");
    const meaning = number.closest("[data-meaning]")?.dataset.meaning;
    const lines = [element("h2", number.value), element("p", `Shown as ${number.textContent}.`)];
    if (table) lines.push(...placeOf(cell, table));
    else if (meaning) lines.push(element("p", meaning));
    lines.push(...commandOf(number, table, cell));
    for (const link of cell?.parentElement.querySelectorAll("a.entry") ?? []) {
      lines.push(element("p", "Profile entry: ", link.cloneNode(true)));
    }
    return lines;
  };

  const show = (number) => {
    chosen = number;
    const button = simtrain.element("button", { type: "button" }, "Close");
    button.addEventListener("click", close);
    card.replaceChildren(...linesOf(number), button);
    card.hidden = false;
  };

  const numberAt = (target) => target.closest("main data");
  for (const number of document.querySelectorAll(".facts data")) number.tabIndex = 0;
  document.addEventListener("click", ({ target }) => {
    const number = numberAt(target);
    if (number) show(number);
  });
  // Moves the focus to a number of the table of another one, `by` numbers further.
  const move = (region, from, by) => {
    const numbers = [...region.querySelectorAll("data")];
    const next = numbers[Math.min(Math.max(numbers.indexOf(from) + by, 0), numbers.length - 1)];
    next?.setAttribute("tabindex", "-1");
    next?.focus();
  };
  const STEPS = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };
  document.addEventListener("keydown", (event) => {
    const region = event.target.closest("main .scroll");
    const number = event.target === region ? null : numberAt(event.target);
    if (event.key === "Escape" && !card.hidden) close();
    else if (event.key === "Escape" && region) region.focus();
    else if (event.key === "Enter" && number) show(number);
    else if (event.key === "Enter" && event.target === region) move(region, null, 1);
    else if (event.key in STEPS && region && number) move(region, number, STEPS[event.key]);
    else return;
    event.preventDefault();
  });
}
