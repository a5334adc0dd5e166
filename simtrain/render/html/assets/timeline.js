// Draws timelines with memory over time below them. All share one window of time.
//
// Bars of a lane of a stage are sorted by start, and only visible bars are drawn. More than
// MANY bars are drawn pixel by pixel: a pixel has the mean colour of its bars, weighted by time.
"use strict";

{
  const LEFT = 62, AXIS = 22, MEMORY = 130, MANY = 6000;
  const figures = [...document.querySelectorAll("figure.timeline")];
  const runs = figures.map(simtrain.dataOf);
  const end = Math.max(...runs.map((run) => run.end_s));
  // All figures show the same window: at first all, or the start of a long iteration.
  const [first, last] = Object.values(runs[0].windows_s)[0];
  const view = { start: first, end: runs[0].windows_s[""] ? end : last };
  const charts = [];
  let waiting = false;

  const redraw = () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => { waiting = false; drawNow(); });
  };
  const drawNow = () => {
    const begin = performance.now();
    charts.forEach((chart) => chart.draw());
    performance.measure("simtrain-timeline", { start: begin });
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
  // Tests read the visible window here and change it.
  simtrain.timeline = { view, setView, drawNow, charts };

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

  class Chart {
    constructor(figure, run, bars, memory) {
      Object.assign(this, { figure, run, bars, memory, stage: null, bar: null });
      this.num = run.num_stages;
      this.lanes = run.tops.length; // per stage
      this.first = run.first;
      this.seconds = run.end_s;
      this.canvas = figure.querySelector(".bars");
      this.below = figure.querySelector(".memory");
      this.readout = figure.querySelector(".readout");
      this.listen();
      new ResizeObserver(redraw).observe(figure);
    }

    get rowHeight() { return Math.min(Math.max(560 / this.num, 9), 42); }
    x(time) { return LEFT + (time - view.start) / (view.end - view.start) * this.width; }
    time(x) { return view.start + (x - LEFT) / this.width * (view.end - view.start); }

    context(canvas, height) {
      const ratio = devicePixelRatio || 1, width = this.figure.clientWidth;
      canvas.style.height = `${height}px`;
      if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
        canvas.width = Math.round(width * ratio);
        canvas.height = Math.round(height * ratio);
      }
      const context = canvas.getContext("2d");
      context.setTransform(ratio, 0, 0, ratio, 0, 0);
      context.clearRect(0, 0, width, height);
      context.font = "12px system-ui, sans-serif";
      context.textBaseline = "middle";
      return context;
    }

    draw() {
      this.width = Math.max(this.figure.clientWidth - LEFT - 6, 50); // read once, because it forces a layout
      this.drawBars();
      this.drawMemory();
    }

    drawBars() {
      const row = this.rowHeight, context = this.context(this.canvas, row * this.num + AXIS);
      const ink = simtrain.style("--ink"), soft = simtrain.style("--soft"), { start_s, end_s } = this.bars;
      const last = this.x(this.seconds), scale = this.width / (view.end - view.start);
      context.fillStyle = simtrain.style("--track");
      const right = Math.min(last, LEFT + this.width);
      if (right > LEFT) {
        for (let stage = 0; stage < this.num; stage++) context.fillRect(LEFT, (stage + 0.05) * row, right - LEFT, this.run.heights[0] * row);
      }
      context.save();
      context.beginPath();
      context.rect(LEFT, 0, this.width, row * this.num);
      context.clip();
      if (this.numVisible() > MANY) this.drawPixels(context, row);
      else this.drawEach(context, row, scale);
      if (this.bar !== null) {
        const [top, height] = this.place(this.bar);
        context.strokeStyle = ink;
        context.lineWidth = 2;
        context.strokeRect(this.x(start_s[this.bar]), top, Math.max((end_s[this.bar] - start_s[this.bar]) * scale, 1), height);
      }
      context.restore();
      context.textAlign = "right";
      const step = Math.ceil(14 / row);
      for (let stage = 0; stage < this.num; stage++) {
        if (stage % step && stage !== this.stage) continue;
        context.fillStyle = stage === this.stage ? ink : soft;
        context.fillText(`stage ${stage}`, LEFT - 8, Math.max((stage + this.run.tops[0] + this.run.heights[0] / 2) * row, 7));
      }
      this.axis(context, row * this.num);
    }

    // Returns the index range of the bars of a lane that may be visible.
    visible(lane) {
      const { start_s } = this.bars, low = this.first[lane], high = this.first[lane + 1];
      return [search(start_s, low, high, view.start - this.run.longest_s[lane]), search(start_s, low, high, view.end)];
    }

    numVisible() {
      let total = 0;
      for (let lane = 0; lane < this.num * this.lanes; lane++) {
        const [low, high] = this.visible(lane);
        total += high - low;
      }
      return total;
    }

    drawPixels(context, row) {
      const ratio = devicePixelRatio || 1, { start_s, end_s, activity, chunk } = this.bars;
      const wide = Math.round(this.width * ratio), image = context.createImageData(wide, Math.round(row * this.num * ratio));
      const pixels = new Uint32Array(image.data.buffer), scale = wide / (view.end - view.start);
      const card = channels(simtrain.style("--card")), track = channels(simtrain.style("--track"));
      const packed = (red, green, blue) => (0xff000000 | blue << 16 | green << 8 | red) >>> 0;
      const fills = this.run.fills.map((one) => one.map(channels));
      const sums = [0, 1, 2, 3].map(() => new Float32Array(wide)), line = new Uint32Array(wide);
      const [reds, greens, blues, shares] = sums;
      const last = Math.min(Math.max(Math.round((this.seconds - view.start) * scale), 0), wide);
      pixels.fill(packed(...card));
      for (let lane = 0; lane < this.num * this.lanes; lane++) {
        const stage = Math.floor(lane / this.lanes), kind = lane % this.lanes;
        if (!this.run.heights[kind]) continue;
        sums.forEach((one) => one.fill(0));
        const [low, high] = this.visible(lane);
        for (let bar = low; bar < high; bar++) {
          const left = Math.max((start_s[bar] - view.start) * scale, 0), right = Math.min((end_s[bar] - view.start) * scale, wide);
          const fill = fills[activity[bar]][Math.max(chunk[bar], 0)], red = fill[0], green = fill[1], blue = fill[2];
          for (let column = Math.floor(left); column < right; column++) {
            const share = Math.min(right, column + 1) - Math.max(left, column);
            reds[column] += share * red;
            greens[column] += share * green;
            blues[column] += share * blue;
            shares[column] += share;
          }
        }
        for (let column = 0; column < wide; column++) {
          const idle = kind === 0 && column < last ? track : card;
          const rest = Math.max(1 - shares[column], 0), whole = Math.max(shares[column], 1);
          line[column] = packed(reds[column] / whole + rest * idle[0],
            greens[column] / whole + rest * idle[1], blues[column] / whole + rest * idle[2]);
        }
        const top = Math.round((stage + this.run.tops[kind]) * row * ratio);
        const bottom = Math.max(Math.round((stage + this.run.tops[kind] + this.run.heights[kind]) * row * ratio), top + 1);
        for (let y = top; y < Math.min(bottom, image.height); y++) pixels.set(line, y * wide);
      }
      context.putImageData(image, Math.round(LEFT * ratio), 0);
    }

    drawEach(context, row, scale) {
      const { start_s, end_s, activity, chunk, microbatch } = this.bars, labels = [];
      const border = row * this.run.heights[0] >= 8;
      for (let lane = 0; lane < this.num * this.lanes; lane++) {
        const stage = Math.floor(lane / this.lanes), kind = lane % this.lanes;
        const top = (stage + this.run.tops[kind]) * row, height = Math.max(this.run.heights[kind] * row, 0.8);
        const [low, high] = this.visible(lane);
        for (let bar = low; bar < high; bar++) {
          const left = LEFT + (start_s[bar] - view.start) * scale, wide = (end_s[bar] - start_s[bar]) * scale;
          if (left + wide < LEFT) continue;
          const from = Math.max(left, LEFT - 2), until = Math.min(left + wide, LEFT + this.width + 2);
          context.fillStyle = this.run.fills[activity[bar]][Math.max(chunk[bar], 0)];
          context.fillRect(from, top, Math.max(until - from, 0.5), height);
          if (border && kind === 0 && wide > 4) {
            context.strokeStyle = "rgb(0 0 0 / 55%)";
            context.lineWidth = 0.6;
            context.strokeRect(from, top, until - from, height);
            const label = this.run.letters[activity[bar]] + microbatch[bar];
            if (microbatch[bar] >= 0 && until - from > 7 * label.length + 3) {
              labels.push(label, (from + until) / 2, top + height / 2);
            }
          }
        }
      }
      if (row * this.run.heights[0] >= 11) {
        context.fillStyle = "#000";
        context.textAlign = "center";
        context.font = `${Math.min(12, row * this.run.heights[0] - 1)}px system-ui, sans-serif`;
        for (let one = 0; one < labels.length; one += 3) context.fillText(labels[one], labels[one + 1], labels[one + 2]);
        context.font = "12px system-ui, sans-serif";
      }
    }

    axis(context, top) {
      context.fillStyle = context.strokeStyle = simtrain.style("--soft");
      context.lineWidth = 1;
      const { found, step } = simtrain.ticks(view.start, view.end, Math.max(this.width / 110, 2));
      const [unit, size] = step >= 0.1 ? ["s", 1] : step >= 1e-4 ? ["ms", 1e3] : ["µs", 1e6];
      const digits = Math.max(0, Math.ceil(-Math.log10(step * size) - 1e-9));
      for (const time of found) {
        const x = this.x(time);
        context.beginPath();
        context.moveTo(x, top + 1);
        context.lineTo(x, top + 5);
        context.stroke();
        context.textAlign = x > LEFT + this.width - 20 ? "right" : x < LEFT + 15 ? "left" : "center";
        context.fillText(`${(time * size).toFixed(digits)} ${unit}`, x, top + 14);
      }
    }

    drawMemory() {
      const context = this.context(this.below, MEMORY + AXIS), { time_s, held_bytes } = this.memory;
      const capacity = this.run.memory.capacity_bytes, first = this.run.memory.first;
      const peaks = this.run.memory.peaks_bytes;
      const most = 1.08 * Math.max(capacity, ...peaks);
      const y = (bytes) => MEMORY - (MEMORY - 6) * bytes / most;
      const soft = simtrain.style("--soft"), ink = simtrain.style("--ink");
      context.fillStyle = soft;
      context.strokeStyle = simtrain.style("--line");
      context.textAlign = "right";
      const grid = simtrain.ticks(0, most / 2 ** 30, 4);
      for (const gib of grid.found) {
        context.beginPath();
        context.moveTo(LEFT, y(gib * 2 ** 30));
        context.lineTo(LEFT + this.width, y(gib * 2 ** 30));
        context.stroke();
        context.fillText(`${gib} GiB`, LEFT - 8, Math.max(y(gib * 2 ** 30), 8));
      }
      const last = this.num - 1;
      const fullest = this.run.memory.fullest_stage;
      const shown = [...new Set(this.stage === null ? [0, fullest, last] : [fullest, this.stage])];
      const isDark = channels(simtrain.style("--card"))[0] < 128;
      const styles = [[isDark ? "#56b4e9" : "#0072b2", [], "solid"], ["#e69f00", [6, 3], "dashed"], [ink, [2, 3], "dotted"]];
      context.save();
      context.beginPath();
      context.rect(LEFT, 0, this.width, MEMORY);
      context.clip();
      shown.forEach((stage, number) => {
        const low = first[stage], high = first[stage + 1];
        const [colour, dashes] = styles[number];
        context.strokeStyle = colour;
        context.setLineDash(dashes);
        context.lineWidth = 1.6;
        context.beginPath();
        let place = Math.max(search(time_s, low, high, view.start) - 1, low);
        context.moveTo(this.x(time_s[place]), y(held_bytes[place]));
        while (place < high && time_s[place] <= view.end) {
          // Values within one pixel are drawn as a vertical line from the smallest to the largest.
          const x = this.x(time_s[place]);
          let least = Infinity, largest = -Infinity, at = held_bytes[place];
          for (; place < high && this.x(time_s[place]) < x + 1; place++) {
            at = held_bytes[place];
            least = Math.min(least, at);
            largest = Math.max(largest, at);
          }
          context.lineTo(x, y(held_bytes[Math.max(place - 1, low)]));
          context.moveTo(x, y(least));
          context.lineTo(x, y(largest));
          context.moveTo(x, y(at));
          const next = place < high ? this.x(Math.min(time_s[place], view.end)) : this.x(this.seconds);
          context.lineTo(next, y(at));
        }
        context.stroke();
      });
      context.setLineDash([7, 3, 2, 3]);
      context.strokeStyle = simtrain.style("--bad");
      context.beginPath();
      context.moveTo(LEFT, y(capacity));
      context.lineTo(LEFT + this.width, y(capacity));
      context.stroke();
      context.restore();
      context.setLineDash([]);
      this.axis(context, MEMORY);
      this.writeLegend(shown.map((stage, number) => [stage, ...styles[number]]), fullest, capacity);
    }

    // Writes below the canvas what its lines show: the memory of stages, and the capacity.
    writeLegend(lines, fullest, capacity) {
      const written = String(lines);
      if (written === this.written) return;
      this.written = written;
      const item = (colour, dash, ...words) => simtrain.element("li", {},
        simtrain.element("span", { class: "line", style: { "border-top": `2px ${dash} ${colour}` } }), ...words);
      this.figure.querySelector(".lines").replaceChildren(
        ...lines.map(([stage, colour, , dash]) => item(colour, dash,
          "stage ", simtrain.number(stage, stage), stage === fullest ? ", the fullest" : "")),
        item("var(--bad)", "dashed", "capacity ", simtrain.number(capacity, simtrain.bytes(capacity))));
    }

    lane(bar) { return search(this.first, 0, this.first.length, bar + 1) - 1; }

    place(bar) {
      const lane = this.lane(bar), stage = Math.floor(lane / this.lanes), kind = lane % this.lanes;
      return [(stage + this.run.tops[kind]) * this.rowHeight, Math.max(this.run.heights[kind] * this.rowHeight, 1)];
    }

    // Returns the bar at a point of the canvas, or null between bars.
    hit(x, y) {
      const stage = Math.floor(y / this.rowHeight), within = y / this.rowHeight - stage;
      if (stage < 0 || stage >= this.num || x < LEFT) return null;
      const kind = Math.max(this.run.tops.findLastIndex((top, row) => this.run.heights[row] && within >= top), 0);
      const lane = stage * this.lanes + kind, low = this.first[lane], time = this.time(x), slack = this.time(x + 1) - time;
      for (let bar = search(this.bars.start_s, low, this.first[lane + 1], time + slack) - 1; bar >= low; bar--) {
        if (this.bars.end_s[bar] >= time - slack) return bar;
        if (this.bars.start_s[bar] < time - slack - this.run.longest_s[lane]) break;
      }
      return null;
    }

    // Returns the words about a bar. Each number has its exact value.
    describe(bar) {
      const lane = this.lane(bar), stage = Math.floor(lane / this.lanes), { start_s, end_s, activity, microbatch, chunk } = this.bars;
      const exact = (name) => simtrain.number(this.bars[name][bar], simtrain.exact(this.bars[name][bar]));
      const words = ["Stage ", simtrain.number(stage, stage), `: ${this.run.activities[activity[bar]]}`];
      if (microbatch[bar] >= 0) words.push(" of microbatch ", exact("microbatch"));
      if (microbatch[bar] >= 0 && this.run.fills[0].length > 1) words.push(", chunk ", exact("chunk"));
      const seconds = end_s[bar] - start_s[bar];
      const length = simtrain.number(seconds, simtrain.seconds(seconds));
      return [...words, ", ", length, ", from ", exact("start_s"), " to ", exact("end_s"), " s."];
    }

    choose(bar) {
      if (bar === this.bar) return;
      this.bar = bar;
      this.readout.replaceChildren(...bar === null ? [] : this.describe(bar));
      redraw();
    }

    step(by) {
      const lane = (this.stage ?? 0) * this.lanes, low = this.first[lane], high = this.first[lane + 1] - 1;
      const isHere = this.bar !== null && this.bar >= low && this.bar <= high;
      const next = isHere ? Math.min(Math.max(this.bar + by, low), high) : search(this.bars.start_s, low, high, view.start);
      this.stage ??= 0;
      const from = this.bars.start_s[next], until = this.bars.end_s[next], length = view.end - view.start;
      if (from < view.start || until > view.end) setView((from + until - length) / 2, length);
      this.choose(next);
    }

    listen() {
      const { canvas } = this;
      let held = null;
      const pinch = new Map();
      canvas.addEventListener("wheel", (event) => {
        if (!event.ctrlKey && !event.metaKey) return; // let the page scroll
        event.preventDefault();
        zoom(Math.exp(event.deltaY * 0.004), this.time(event.offsetX));
      }, { passive: false });
      canvas.addEventListener("pointerdown", (event) => {
        pinch.set(event.pointerId, event.offsetX);
        held = { x: event.offsetX, start: view.start };
        canvas.setPointerCapture(event.pointerId);
        const bar = this.hit(event.offsetX, event.offsetY);
        if (bar !== null) this.stage = Math.floor(this.lane(bar) / this.lanes);
        this.choose(bar);
        redraw();
      });
      canvas.addEventListener("pointermove", (event) => {
        if (pinch.size === 2 && pinch.has(event.pointerId)) {
          const [a, b] = pinch.values(), before = Math.abs(a - b);
          pinch.set(event.pointerId, event.offsetX);
          const [c, d] = pinch.values();
          zoom(Math.max(before, 1) / Math.max(Math.abs(c - d), 1), this.time((c + d) / 2));
        } else if (held) {
          setView(held.start - (event.offsetX - held.x) / this.width * (view.end - view.start), view.end - view.start);
        } else {
          this.choose(this.hit(event.offsetX, event.offsetY));
        }
      });
      const release = (event) => { pinch.delete(event.pointerId); held = null; };
      canvas.addEventListener("pointerup", release);
      canvas.addEventListener("pointercancel", release);
      canvas.addEventListener("dblclick", (event) => zoom(0.4, this.time(event.offsetX)));
      canvas.addEventListener("keydown", (event) => {
        const length = view.end - view.start;
        const keys = {
          "+": () => zoom(0.6), "=": () => zoom(0.6), "-": () => zoom(1 / 0.6),
          0: () => setView(0, end), Home: () => setView(0, length), End: () => setView(end, length),
          ArrowRight: () => event.shiftKey ? setView(view.start + 0.2 * length, length) : this.step(1),
          ArrowLeft: () => event.shiftKey ? setView(view.start - 0.2 * length, length) : this.step(-1),
          ArrowDown: () => { this.stage = Math.min((this.stage ?? -1) + 1, this.num - 1); this.bar = null; this.step(0); },
          ArrowUp: () => { this.stage = Math.max((this.stage ?? 1) - 1, 0); this.bar = null; this.step(0); },
          Escape: () => { this.stage = null; this.choose(null); redraw(); },
        };
        if (event.ctrlKey || event.metaKey || event.altKey || !(event.key in keys)) return;
        event.preventDefault();
        keys[event.key]();
      });
      for (const button of this.figure.querySelectorAll("[data-zoom]")) {
        button.addEventListener("click", () => ({ in: () => zoom(0.6), out: () => zoom(1 / 0.6), all: () => setView(0, end) })[button.dataset.zoom]());
      }
      for (const button of this.figure.querySelectorAll("[data-part]")) {
        const [from, until] = this.run.windows_s[button.dataset.part];
        button.addEventListener("click", () => setView(from, until - from));
      }
    }
  }

  const columns = async (packed) => Object.fromEntries(await Promise.all(
    Object.entries(packed).map(async ([name, column]) => [name, await simtrain.array(column)])));
  simtrain.timeline.ready = Promise.all(figures.map(async (figure, number) => {
    const run = runs[number];
    const [bars, memory] = await Promise.all([columns(run.columns), columns(run.memory.columns)]);
    charts[number] = new Chart(figure, run, bars, memory);
  })).then(drawNow);
  simtrain.onTheme(redraw);
  simtrain.onPrint(() => charts.forEach((chart) => chart.draw()));
}
