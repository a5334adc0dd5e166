// Draws timelines, and memory over time below them. All figures of a page show one window of time.
//
// A figure has rows, such as stages, and a row has lanes. Bars of a lane are sorted by start, and only
// visible bars are drawn. A pixel has the mean colour of its bars, weighted by their time; bars that
// are wide enough also have an outline and a label.
"use strict";

{
  const AXIS = 22, MEMORY = 130;
  const figures = [...document.querySelectorAll("figure.timeline")];
  const runs = figures.map(simtrain.dataOf), view = { start: 0, end: 0 }, charts = [];
  const end = Math.max(0, ...runs.map((run) => run.end_s));
  const longest = Math.max(0, ...runs.flatMap((run) => run.rows.map((row) => row.length)));
  const LEFT = Math.min(16 + 6.6 * longest, 160);
  let waiting = false;

  const drawNow = () => {
    const begin = performance.now();
    charts.forEach((chart) => chart.draw());
    performance.measure("simtrain-timeline", { start: begin });
  };
  const redraw = () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => { waiting = false; drawNow(); });
  };
  const setView = (start, length) => {
    const kept = Math.min(Math.max(length, end * 1e-6), end);
    view.start = Math.min(Math.max(start, 0), end - kept);
    view.end = view.start + kept;
    redraw();
  };
  const zoom = (factor, at = (view.start + view.end) / 2) => {
    const length = Math.min((view.end - view.start) * factor, end);
    setView(at - (at - view.start) * (length / (view.end - view.start)), length);
  };

  // Returns the first index in [low, high) with a value of at least `value`.
  const search = (values, low, high, value) => {
    while (low < high) {
      const middle = (low + high) >> 1;
      if (values[middle] < value) low = middle + 1; else high = middle;
    }
    return low;
  };
  // Returns red, green and blue of a colour such as #56b4e9 or #fff.
  const channels = (hex) => {
    const long = hex.length === 4 ? hex.replace(/[0-9a-f]/gi, "$&$&") : hex;
    return [1, 3, 5].map((at) => parseInt(long.slice(at, at + 2), 16));
  };
  const packed = (red, green, blue) => (0xff000000 | blue << 16 | green << 8 | red) >>> 0;

  class Chart {
    constructor(figure, run, bars, memory) {
      Object.assign(this, { figure, run, bars, memory, row: null, bar: null });
      this.lanes = run.tops.length; // per row
      this.canvas = figure.querySelector(".bars");
      this.readout = figure.querySelector(".readout");
      this.listen();
      new ResizeObserver(redraw).observe(figure);
    }

    get num() { return this.run.rows.length; }
    get rowHeight() { return Math.min(Math.max(560 / this.num, 9), 42); }
    x(time) { return LEFT + (time - view.start) / (view.end - view.start) * this.width; }
    time(x) { return view.start + (x - LEFT) / this.width * (view.end - view.start); }
    lane(bar) { return search(this.run.first, 0, this.run.first.length, bar + 1) - 1; }

    // Returns the top and the height of a lane on the canvas.
    span(lane) {
      const kind = lane % this.lanes, { tops, heights } = this.run;
      return [(Math.floor(lane / this.lanes) + tops[kind]) * this.rowHeight, heights[kind] * this.rowHeight];
    }
    place(bar) { return this.span(this.lane(bar)); }

    // Returns the index range of the bars of a lane that may be visible.
    visible(lane) {
      const { start_s } = this.bars, { first, longest_s } = this.run;
      return [view.start - longest_s[lane], view.end].map((time) => search(start_s, first[lane], first[lane + 1], time));
    }

    context(canvas, height) {
      const ratio = devicePixelRatio || 1, width = this.figure.clientWidth;
      canvas.style.height = `${height}px`;
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
      const context = canvas.getContext("2d");
      context.setTransform(ratio, 0, 0, ratio, 0, 0);
      context.font = "12px system-ui, sans-serif";
      context.textBaseline = "middle";
      return context;
    }

    draw() {
      this.width = Math.max(this.figure.clientWidth - LEFT - 6, 50); // read once, because it forces a layout
      const row = this.rowHeight, context = this.context(this.canvas, row * this.num + AXIS);
      this.drawPixels(context, row);
      context.save();
      this.clip(context, row * this.num);
      this.drawLabels(context);
      if (this.bar !== null) {
        const [top, height] = this.place(this.bar), left = this.x(this.bars.start_s[this.bar]);
        context.strokeStyle = simtrain.style("--ink");
        context.lineWidth = 2;
        context.strokeRect(left, top, Math.max(this.x(this.bars.end_s[this.bar]) - left, 1), height);
      }
      context.restore();
      context.textAlign = "right";
      const step = Math.ceil(14 / row);
      this.run.rows.forEach((name, number) => {
        if (number % step && number !== this.row) return;
        context.fillStyle = simtrain.style(number === this.row ? "--ink" : "--soft");
        const [top, height] = this.span(number * this.lanes);
        context.fillText(name, LEFT - 8, Math.max(top + height / 2, 7), LEFT - 10);
      });
      this.axis(context, row * this.num);
      if (this.memory) this.drawMemory(this.run.memory);
    }

    clip(context, height) {
      context.beginPath();
      context.rect(LEFT, 0, this.width, height);
      context.clip();
    }

    drawPixels(context, row) {
      const ratio = devicePixelRatio || 1, { start_s, end_s, activity, chunk } = this.bars;
      const wide = Math.round(this.width * ratio), image = context.createImageData(wide, Math.round(row * this.num * ratio));
      const pixels = new Uint32Array(image.data.buffer), scale = wide / (view.end - view.start);
      const card = channels(simtrain.style("--card")), track = channels(simtrain.style("--track"));
      const fills = this.run.fills.map((chunks) => chunks.map(channels));
      const sums = [0, 1, 2, 3].map(() => new Float32Array(wide)), line = new Uint32Array(wide);
      const [reds, greens, blues, shares] = sums;
      const last = Math.min(Math.max(Math.round((this.run.end_s - view.start) * scale), 0), wide);
      pixels.fill(packed(...card));
      for (let lane = 0; lane < this.num * this.lanes; lane++) {
        const [top, height] = this.span(lane).map((place) => place * ratio);
        if (!height) continue;
        sums.forEach((sum) => sum.fill(0));
        const [low, high] = this.visible(lane);
        for (let bar = low; bar < high; bar++) {
          const left = Math.max((start_s[bar] - view.start) * scale, 0), right = Math.min((end_s[bar] - view.start) * scale, wide);
          const [red, green, blue] = fills[activity[bar]][Math.max(chunk[bar], 0)];
          for (let column = Math.floor(left); column < right; column++) {
            const share = Math.min(right, column + 1) - Math.max(left, column);
            reds[column] += share * red;
            greens[column] += share * green;
            blues[column] += share * blue;
            shares[column] += share;
          }
        }
        for (let column = 0; column < wide; column++) {
          const idle = lane % this.lanes === 0 && column < last ? track : card;
          const rest = Math.max(1 - shares[column], 0), whole = Math.max(shares[column], 1);
          line[column] = packed(reds[column] / whole + rest * idle[0],
            greens[column] / whole + rest * idle[1], blues[column] / whole + rest * idle[2]);
        }
        const until = Math.min(Math.max(Math.round(top + height), Math.round(top) + 1), image.height);
        for (let y = Math.round(top); y < until; y++) pixels.set(line, y * wide);
      }
      context.putImageData(image, Math.round(LEFT * ratio), 0);
    }

    // Outlines the bars of the first lane of each row that are wide enough, and writes their microbatches.
    drawLabels(context) {
      const { start_s, end_s, activity, microbatch } = this.bars, [, height] = this.span(0);
      if (height < 8) return;
      context.strokeStyle = "rgb(0 0 0 / 55%)";
      context.fillStyle = "#000";
      context.lineWidth = 0.6;
      context.textAlign = "center";
      context.font = `${Math.min(12, height - 1)}px system-ui, sans-serif`;
      for (let lane = 0; lane < this.num * this.lanes; lane += this.lanes) {
        const [top] = this.span(lane), [low, high] = this.visible(lane);
        for (let bar = low; bar < high; bar++) {
          const from = Math.max(this.x(start_s[bar]), LEFT - 2), until = Math.min(this.x(end_s[bar]), LEFT + this.width + 2);
          if (until - from <= 4) continue;
          context.strokeRect(from, top, until - from, height);
          const label = this.run.letters[activity[bar]] + microbatch[bar];
          if (height >= 11 && microbatch[bar] >= 0 && until - from > 7 * label.length + 3) context.fillText(label, (from + until) / 2, top + height / 2);
        }
      }
      context.font = "12px system-ui, sans-serif";
    }

    axis(context, top) {
      context.fillStyle = context.strokeStyle = simtrain.style("--soft");
      context.lineWidth = 1;
      const { found, step } = simtrain.ticks(view.start, view.end, Math.max(this.width / 110, 2));
      const [unit, size] = step >= 0.1 ? ["s", 1] : step >= 1e-4 ? ["ms", 1e3] : ["µs", 1e6];
      const digits = Math.max(0, Math.ceil(-Math.log10(step * size) - 1e-9));
      for (const tick of found) {
        const x = this.x(tick);
        context.beginPath();
        context.moveTo(x, top + 1);
        context.lineTo(x, top + 5);
        context.stroke();
        context.textAlign = x > LEFT + this.width - 20 ? "right" : x < LEFT + 15 ? "left" : "center";
        context.fillText(`${(tick * size).toFixed(digits)} ${unit}`, x, top + 14);
      }
    }

    drawMemory({ capacity_bytes: capacity, first, peaks_bytes: peaks, fullest_stage: fullest }) {
      const context = this.context(this.figure.querySelector(".memory"), MEMORY + AXIS), { time_s, held_bytes } = this.memory;
      const most = 1.08 * Math.max(capacity, ...peaks), y = (bytes) => MEMORY - (MEMORY - 6) * bytes / most;
      context.fillStyle = simtrain.style("--soft");
      context.textAlign = "right";
      for (const gib of simtrain.ticks(0, most / 2 ** 30, 4).found) {
        context.strokeStyle = simtrain.style("--line");
        context.strokeRect(LEFT, y(gib * 2 ** 30), this.width, 0);
        context.fillText(`${gib} GiB`, LEFT - 8, Math.max(y(gib * 2 ** 30), 8));
      }
      const shown = [...new Set(this.row === null ? [0, fullest, this.num - 1] : [fullest, this.row])];
      const isDark = channels(simtrain.style("--card"))[0] < 128;
      const styles = [[isDark ? "#56b4e9" : "#0072b2", [], "solid"], ["#e69f00", [6, 3], "dashed"], [simtrain.style("--ink"), [2, 3], "dotted"]];
      context.save();
      this.clip(context, MEMORY);
      context.lineWidth = 1.6;
      shown.forEach((stage, number) => {
        const low = first[stage], high = first[stage + 1];
        [context.strokeStyle] = styles[number];
        context.setLineDash(styles[number][1]);
        context.beginPath();
        let place = Math.max(search(time_s, low, high, view.start) - 1, low);
        context.moveTo(this.x(time_s[place]), y(held_bytes[place]));
        while (place < high && time_s[place] <= view.end) {
          // Values within one pixel are drawn as a vertical line from the smallest to the largest.
          const x = this.x(time_s[place]), from = place;
          while (place < high && this.x(time_s[place]) < x + 1) place++;
          const values = held_bytes.subarray(from, place), last = values.at(-1);
          context.lineTo(x, y(last));
          context.moveTo(x, y(Math.min(...values)));
          context.lineTo(x, y(Math.max(...values)));
          context.moveTo(x, y(last));
          context.lineTo(this.x(place < high ? Math.min(time_s[place], view.end) : this.run.end_s), y(last));
        }
        context.stroke();
      });
      context.setLineDash([7, 3, 2, 3]);
      context.strokeStyle = simtrain.style("--bad");
      context.strokeRect(LEFT, y(capacity), this.width, 0);
      context.restore();
      this.axis(context, MEMORY);
      const item = (colour, dash, ...words) => simtrain.element("li", {},
        simtrain.element("span", { class: "line", style: { "border-top": `2px ${dash} ${colour}` } }), ...words);
      this.figure.querySelector(".lines").replaceChildren(
        ...shown.map((stage, number) => item(styles[number][0], styles[number][2],
          "stage ", simtrain.number(stage, stage), stage === fullest ? ", the fullest" : "")),
        item("var(--bad)", "dashed", "capacity ", simtrain.number(capacity, simtrain.bytes(capacity))));
    }

    // Returns the bar at a point of the canvas, or null between bars.
    hit(x, y) {
      const row = Math.floor(y / this.rowHeight), within = y / this.rowHeight - row;
      if (row < 0 || row >= this.num || x < LEFT) return null;
      const kind = Math.max(this.run.tops.findLastIndex((top, lane) => this.run.heights[lane] && within >= top), 0);
      const lane = row * this.lanes + kind, low = this.run.first[lane], time = this.time(x), slack = this.time(x + 1) - time;
      for (let bar = search(this.bars.start_s, low, this.run.first[lane + 1], time + slack) - 1; bar >= low; bar--) {
        if (this.bars.end_s[bar] >= time - slack) return bar;
        if (this.bars.start_s[bar] < time - slack - this.run.longest_s[lane]) break;
      }
      return null;
    }

    // Returns the words about a bar. Each number has its exact value.
    describe(bar) {
      const { start_s, end_s, activity, microbatch, chunk } = this.bars;
      const row = this.run.rows[Math.floor(this.lane(bar) / this.lanes)], seconds = end_s[bar] - start_s[bar];
      const exact = (value) => simtrain.number(value, simtrain.exact(value));
      const words = [row[0].toUpperCase() + row.slice(1), `: ${this.run.activities[activity[bar]]}`];
      if (microbatch[bar] >= 0) words.push(" of microbatch ", exact(microbatch[bar]));
      if (microbatch[bar] >= 0 && this.run.fills[0].length > 1) words.push(", chunk ", exact(chunk[bar]));
      return [...words, ", ", simtrain.number(seconds, simtrain.seconds(seconds)),
        ", from ", exact(start_s[bar]), " to ", exact(end_s[bar]), " s."];
    }

    choose(bar) {
      if (bar === this.bar) return;
      this.bar = bar;
      this.readout.replaceChildren(...bar === null ? [] : this.describe(bar));
      redraw();
    }

    step(by) {
      this.row ??= 0;
      const lane = this.row * this.lanes, low = this.run.first[lane], high = this.run.first[lane + 1] - 1;
      if (high < low) return;
      const isHere = this.bar !== null && this.bar >= low && this.bar <= high;
      const next = isHere ? Math.min(Math.max(this.bar + by, low), high) : search(this.bars.start_s, low, high, view.start);
      const from = this.bars.start_s[next], until = this.bars.end_s[next], length = view.end - view.start;
      if (from < view.start || until > view.end) setView((from + until - length) / 2, length);
      this.choose(next);
    }

    // Chooses a row by keys, and the bar of it that begins first in the window.
    move(row) {
      this.row = Math.min(Math.max(row, 0), this.num - 1);
      this.bar = null;
      this.step(0);
    }

    listen() {
      const { canvas } = this;
      let held = null;
      canvas.addEventListener("wheel", (event) => {
        if (!event.ctrlKey && !event.metaKey) return; // let the page scroll
        event.preventDefault();
        zoom(Math.exp(event.deltaY * 0.004), this.time(event.offsetX));
      }, { passive: false });
      canvas.addEventListener("pointerdown", (event) => {
        held = { x: event.offsetX, start: view.start };
        canvas.setPointerCapture(event.pointerId);
        const bar = this.hit(event.offsetX, event.offsetY);
        if (bar !== null) this.row = Math.floor(this.lane(bar) / this.lanes);
        this.choose(bar);
        redraw();
      });
      canvas.addEventListener("pointermove", (event) => {
        const length = view.end - view.start;
        if (held) setView(held.start - (event.offsetX - held.x) / this.width * length, length);
        else this.choose(this.hit(event.offsetX, event.offsetY));
      });
      for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, () => { held = null; });
      canvas.addEventListener("dblclick", (event) => zoom(0.4, this.time(event.offsetX)));
      canvas.addEventListener("keydown", (event) => {
        const length = view.end - view.start;
        const keys = {
          "+": () => zoom(0.6), "=": () => zoom(0.6), "-": () => zoom(1 / 0.6),
          0: () => setView(0, end), Home: () => setView(0, length), End: () => setView(end, length),
          ArrowRight: () => event.shiftKey ? setView(view.start + 0.2 * length, length) : this.step(1),
          ArrowLeft: () => event.shiftKey ? setView(view.start - 0.2 * length, length) : this.step(-1),
          ArrowDown: () => this.move((this.row ?? -1) + 1), ArrowUp: () => this.move((this.row ?? 1) - 1),
          Escape: () => { this.row = null; this.choose(null); redraw(); },
        };
        if (event.ctrlKey || event.metaKey || event.altKey || !(event.key in keys)) return;
        event.preventDefault();
        keys[event.key]();
      });
      for (const button of this.figure.querySelectorAll("[data-zoom]")) {
        const zooms = { in: () => zoom(0.6), out: () => zoom(1 / 0.6), all: () => setView(0, end) };
        button.addEventListener("click", zooms[button.dataset.zoom]);
      }
      for (const button of this.figure.querySelectorAll("[data-part]")) {
        const [from, until] = this.run.windows_s[button.dataset.part];
        button.addEventListener("click", () => setView(from, until - from));
      }
    }
  }

  if (runs.length) {
    // At first all of the iteration is visible, or the start of a long one.
    const [from, until] = Object.values(runs[0].windows_s)[0];
    Object.assign(view, { start: from, end: runs[0].windows_s[""] ? end : until });
  }
  const columns = async (arrays) => Object.fromEntries(await Promise.all(
    Object.entries(arrays).map(async ([name, column]) => [name, await simtrain.array(column)])));
  simtrain.timeline = { view, charts, setView, drawNow }; // tests read and change the window
  simtrain.timeline.ready = Promise.all(figures.map(async (figure, number) => {
    const run = runs[number], bars = await columns(run.columns);
    charts[number] = new Chart(figure, run, bars, run.memory && await columns(run.memory.columns));
  })).then(drawNow);
  simtrain.onTheme(redraw);
}
