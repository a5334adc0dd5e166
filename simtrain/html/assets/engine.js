// Computes an iteration for any positions of the sliders, from the data of simtrain/sliders/data.py.
//
// The algorithms are those of simtrain/engine, and are explained there: `longestPaths` is
// find_longest_paths, and `share` and `slowdowns` are run_sharing and find_slowdowns. Durations of ops
// are read from tables, not computed here.
"use strict";

simtrain.engine = (() => {
  // Decodes a program. `after` lists the tasks that each task waits for, including the previous task
  // on its stream; `then` lists the tasks that wait for it.
  async function program(data) {
    const names = ["stream_of", "part_of", "num_after", "after"];
    const columns = await Promise.all(names.map((name) => simtrain.array(data[name])));
    const [streamOf, partOf, numAfter, differences] = columns;
    const numTasks = streamOf.length;
    const before = new Int32Array(data.num_streams).fill(-1);
    const numWaits = new Int32Array(numTasks), afterStarts = new Int32Array(numTasks + 1);
    const after = new Int32Array(numTasks + differences.length), thenStarts = new Int32Array(numTasks + 1);
    for (let task = 0, back = 0, from = 0, to = 0; task < numTasks; task++) {
      const stream = streamOf[task];
      if (before[stream] >= 0) after[to++] = before[stream];
      before[stream] = task;
      for (let i = 0; i < numAfter[task]; i++) after[to++] = task - (back += differences[from++]);
      numWaits[task] = to - afterStarts[task];
      afterStarts[task + 1] = to;
    }
    const num = afterStarts[numTasks];
    for (let i = 0; i < num; i++) thenStarts[after[i] + 1]++;
    for (let task = 0; task < numTasks; task++) thenStarts[task + 1] += thenStarts[task];
    const then = new Int32Array(num), places = thenStarts.slice();
    for (let task = 0; task < numTasks; task++) {
      for (let i = afterStarts[task]; i < afterStarts[task + 1]; i++) then[places[after[i]]++] = task;
    }
    return { ...data, numTasks, streamOf, partOf, numWaits, afterStarts, after, thenStarts, then };
  }

  // Longest paths: a task starts when the last of the tasks that it waits for ends.
  function longestPaths({ numTasks, partOf, numWaits, thenStarts, then }, seconds) {
    const starts = new Float64Array(numTasks), ends = new Float64Array(numTasks);
    const waits = numWaits.slice(), order = new Int32Array(numTasks);
    let numOrdered = 0;
    for (let task = 0; task < numTasks; task++) if (waits[task] === 0) order[numOrdered++] = task;
    for (const task of order) {
      const end = (ends[task] = starts[task] + seconds[partOf[task]]);
      for (let i = thenStarts[task]; i < thenStarts[task + 1]; i++) {
        const next = then[i];
        if (end > starts[next]) starts[next] = end;
        if (--waits[next] === 0) order[numOrdered++] = next;
      }
    }
    return { starts, ends };
  }

  // Returns the slowdown of each running task, by weighted max-min fairness. `running` lists the running
  // tasks that have a load, each as {load, weight, links}.
  function slowdowns(numLinks, running) {
    const free = new Float64Array(numLinks).fill(1), found = new Float64Array(running.length);
    for (let numOpen = running.length; numOpen > 0;) {
      const claims = new Float64Array(numLinks);
      let level = 0, fullest = -1;
      running.forEach(({ load, weight, links }, place) => {
        if (found[place] !== 0) return;
        level = Math.max(level, weight);
        for (const link of links) claims[link] += load * weight;
      });
      for (let link = 0; link < numLinks; link++) {
        const claimed = claims[link] / Math.max(free[link], 1e-12);
        if (claimed > level) [level, fullest] = [claimed, link];
      }
      running.forEach(({ load, weight, links }, place) => {
        const stays = fullest < 0 ? weight === level : links.includes(fullest);
        if (found[place] !== 0 || !stays) return;
        found[place] = fullest < 0 ? 1 : level / weight;
        numOpen--;
        for (const link of links) free[link] -= load / found[place];
      });
    }
    return found;
  }

  // Runs tasks that share links; `loads` has the load of each part. Tasks on links between nodes share
  // bandwidth equally (weight 1/load). Kernels and collectives on a GPU slow down by the same factor
  // (weight 1).
  //
  // run_sharing visits all streams and all running tasks at every event. This version is faster: the
  // end of a task lists the tasks that may start, and an event changes the speeds only of tasks that
  // are connected by shared links to a task that started or ended.
  function share(program, seconds, loads) {
    const { numTasks, streamOf, partOf, numWaits, thenStarts, then, links } = program;
    const sharesEqually = program.adapter_share !== undefined;
    const numStreams = links.length, numLinks = 1 + Math.max(...links.flat());
    const starts = new Float64Array(numTasks), ends = new Float64Array(numTasks);
    const waits = numWaits.slice(), ready = [];
    const running = new Int32Array(numStreams), finish = new Float64Array(numStreams).fill(Infinity);
    // At time `begun`, a task with a load had `left` seconds of work; its slowdown applies since then.
    const left = new Float64Array(numStreams), begun = new Float64Array(numStreams);
    const slowdown = new Float64Array(numStreams);
    const sharing = Array.from({ length: numLinks }, () => new Set()), touched = new Set();
    const loadOf = (stream) => loads[partOf[running[stream]]];
    let now = 0;

    const end = (task) => {
      ends[task] = now;
      for (let i = thenStarts[task]; i < thenStarts[task + 1]; i++) if (--waits[then[i]] === 0) ready.push(then[i]);
    };
    const start = (task) => {
      const stream = streamOf[task], part = partOf[task];
      starts[task] = now;
      if (seconds[part] === 0) return end(task);
      running[stream] = task;
      finish[stream] = now + seconds[part];
      if (!(loads[part] > 0)) return undefined;
      left[stream] = seconds[part];
      begun[stream] = now;
      finish[stream] = slowdown[stream] = Infinity;
      for (const link of links[stream]) sharing[link].add(stream), touched.add(link);
      return undefined;
    };
    const changeSpeeds = () => {
      const found = new Set();
      let isFull = false;
      // Iterating over a set also visits links added during the loop.
      for (const link of touched) {
        let used = 0;
        for (const stream of sharing[link]) {
          found.add(stream);
          for (const one of links[stream]) touched.add(one);
          used += loadOf(stream);
        }
        isFull ||= used > 1;
      }
      touched.clear();
      const streams = [...found].sort((one, other) => one - other);
      // If no link is overloaded, all tasks run at full speed.
      const speeds = isFull ? slowdowns(numLinks, streams.map((stream) => {
        const load = loadOf(stream);
        return { load, weight: sharesEqually ? 1 / load : 1, links: links[stream] };
      })) : null;
      streams.forEach((stream, place) => {
        const one = speeds ? speeds[place] : 1;
        if (one === slowdown[stream]) return;
        left[stream] -= (now - begun[stream]) / slowdown[stream];
        begun[stream] = now;
        slowdown[stream] = one;
        finish[stream] = now + Math.max(left[stream], 0) * one;
      });
    };

    for (let task = 0; task < numTasks; task++) if (waits[task] === 0) ready.push(task);
    while (now < Infinity) {
      for (let stream = 0; stream < numStreams; stream++) {
        if (finish[stream] > now) continue;
        if (loadOf(stream) > 0) for (const link of links[stream]) sharing[link].delete(stream), touched.add(link);
        finish[stream] = Infinity;
        end(running[stream]);
      }
      while (ready.length) start(ready.pop());
      if (touched.size) changeSpeeds();
      now = Infinity;
      for (let stream = 0; stream < numStreams; stream++) if (finish[stream] < now) now = finish[stream];
    }
    return { starts, ends };
  }

  // Returns 0 and the end of each layer of a pass. The last layer ends with the pass.
  function layerEnds(pass, ends) {
    const found = [0];
    let moment = 0, task = 0;
    for (const last of pass.layers.slice(0, -1)) {
      for (; task <= last; task++) if (task % 2) moment = Math.max(moment, ends[task]);
      found.push(moment);
    }
    return [...found, lastOf(ends)];
  }

  function lastOf(moments) {
    return moments.reduce((one, other) => Math.max(one, other), 0);
  }

  // Returns a function that gives the bars of a timeline, sorted by lane (three per stage) and start. As
  // in report/activities.py, adjacent spans of a pass are one bar, and a pass that recomputes is two.
  async function bars(data, partOf) {
    const names = ["task", "stage", "row", "activity", "chunk", "microbatch"];
    const columns = await Promise.all(names.map((name) => simtrain.array(data[name])));
    for (const column of columns) for (let i = 1; i < column.length; i++) column[i] += column[i - 1];
    const [task, stage, row, activity, chunk, byActivity] = columns;
    const num = task.length, microbatch = new Int32Array(num);
    for (let kind = 0, next = 0; next < num; kind++) {
      for (let i = 0; i < num; i++) if (activity[i] === kind) microbatch[i] = byActivity[next++];
    }
    const mayJoin = new Uint8Array(num);
    for (let i = 1; i < num; i++) {
      mayJoin[i] = microbatch[i] >= 0 && microbatch[i] === microbatch[i - 1] && stage[i] === stage[i - 1]
        && activity[i] === activity[i - 1] && chunk[i] === chunk[i - 1];
    }

    return ({ starts, ends }, recomputed) => {
      const bar = new Int32Array(2 * num), start = new Float64Array(2 * num), end = new Float64Array(2 * num);
      const isRecompute = new Uint8Array(2 * num), first = new Int32Array(3 * data.num_stages + 1);
      let numBars = 0;
      const add = (i, from, to, recomputes) => {
        bar[numBars] = i;
        start[numBars] = from;
        end[numBars] = to;
        isRecompute[numBars++] = recomputes;
        first[3 * stage[i] + row[i] + 1]++;
      };
      for (let i = 0, next = 0; i < num; i = next) {
        for (next = i + 1; mayJoin[next] && starts[task[next]] === ends[task[next - 1]];) next++;
        const from = starts[task[i]], to = ends[task[next - 1]], share = recomputed[partOf[task[i]]];
        const moment = from + share * (to - from);
        if (share > 0) add(i, from, moment, 1);
        add(i, moment, to, 0);
      }
      for (let lane = 1; lane < first.length; lane++) first[lane] += first[lane - 1];
      const order = new Int32Array(numBars), places = first.slice();
      for (let i = 0; i < numBars; i++) order[places[3 * stage[bar[i]] + row[bar[i]]]++] = i;
      for (let lane = 0; lane + 1 < first.length; lane++) {
        const own = order.subarray(first[lane], first[lane + 1]);
        if (own.some((one, place) => place > 0 && start[one] < start[own[place - 1]])) {
          own.sort((one, other) => start[one] - start[other]);
        }
      }
      const column = (Type, value) => {
        const found = new Type(numBars);
        for (let i = 0; i < numBars; i++) found[i] = value(order[i]);
        return found;
      };
      return {
        first,
        activity: column(Uint8Array, (one) => (isRecompute[one] ? data.recompute : activity[bar[one]])),
        chunk: column(Int16Array, (one) => chunk[bar[one]]),
        microbatch: column(Int32Array, (one) => (isRecompute[one] ? -1 : microbatch[bar[one]])),
        start_s: column(Float64Array, (one) => start[one]),
        end_s: column(Float64Array, (one) => end[one]),
      };
    };
  }

  // Returns a function that gives the times at which the values of memory over time begin. The values
  // stay the same: they depend on the order of passes only.
  async function memoryTimes(differences) {
    const moments = await simtrain.array(differences);
    for (let i = 1; i < moments.length; i++) moments[i] += moments[i - 1];
    return ({ starts, ends }) => {
      const times = new Float64Array(moments.length);
      for (let i = 0; i < times.length; i++) {
        const moment = moments[i];
        if (moment >= 0) times[i] = (moment % 2 ? ends : starts)[moment >> 1];
      }
      return times;
    };
  }

  // Decodes the data of `slider_data`. Returns a function of the sliders' positions by name, such as
  // {compute: 7}. Its result has the starts and ends of the iteration's tasks, in seconds; `bars`,
  // which returns the bars of the timeline; and `memoryTimes`, which returns the times of the values
  // of memory over time.
  async function prepared(data) {
    const values = await simtrain.array(data.tables.values);
    const passes = await Promise.all(data.passes.map(program));
    const iteration = await program(data.iteration);
    const recompute = await Promise.all(data.passes.map((pass) => simtrain.array(pass.recompute)));
    const barsOf = await bars(data.bars, iteration.partOf);
    const memoryTimesOf = await memoryTimes(data.memory_moments);
    const size = data.factors.length;
    const begins = [];
    data.tables.axes.reduce((begin, axes) => (begins.push(begin), begin + size ** axes.length), 0);

    return (positions) => {
      const value = (table) => {
        const axes = data.tables.axes[table];
        return values[begins[table] + axes.reduce((place, name) => place * size + (positions[name] ?? data.base), 0)];
      };
      const longestSum = ({ sums }) =>
        Math.max(...sums.map((tables) => tables.reduce((sum, table) => sum + value(table), 0)));
      const run = (program, seconds, loads) =>
        program.links ? share(program, seconds, loads) : longestPaths(program, seconds);
      const passTimes = passes.map((pass) => {
        const loads = pass.parts.map(({ load }) => (load === undefined ? 0 : value(load)));
        return run(pass, pass.parts.map(longestSum), loads);
      });
      const passEnds = passes.map((pass, place) => layerEnds(pass, passTimes[place].ends));
      const seconds = iteration.parts.map((part) => {
        if (part.sums) return longestSum(part);
        const ends = passEnds[part.pass], [first, end] = part.layers ?? [0, ends.length - 1];
        return ends[end] - ends[first];
      });
      const loads = iteration.parts.map(({ adapter_bytes }, place) =>
        adapter_bytes && iteration.links ? adapter_bytes / seconds[place] / value(iteration.adapter_share) : 0);
      const times = run(iteration, seconds, loads);
      const shares = passTimes.map(({ starts, ends }, place) =>
        recompute[place].reduce((sum, task) => sum + ends[task] - starts[task], 0) / lastOf(ends));
      const recomputed = iteration.parts.map(({ pass }) => (pass === undefined ? 0 : shares[pass]));
      return { ...times, bars: () => barsOf(times, recomputed), memoryTimes: () => memoryTimesOf(times) };
    };
  }

  return { prepared, lastOf };
})();
