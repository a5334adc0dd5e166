// Section 5: larger microbatches, or fewer GPUs, in the freed memory.
"use strict";

{
  const { data } = explore;
  const fits = ({ mfu }) => mfu !== null;

  // Draws the memory of several choices as bars, and the memory of a GPU as a line.
  const memory = (plot, choices, capacity) => {
    const scale = Math.min(2 * capacity, 1.05 * Math.max(capacity, ...choices.map((one) => one.peak_bytes)));
    explore.bars(plot, choices.map((one) => ({
      name: explore.names[one.strategy],
      parts: [
        ["var(--blue)", one.states_bytes, `model states: ${simtrain.bytes(one.states_bytes)}`],
        ["var(--orange)", one.peak_bytes - one.states_bytes, `activations and buffers: ${simtrain.bytes(one.peak_bytes - one.states_bytes)}`],
      ],
      words: [explore.bytes(one.peak_bytes), " ", fits(one) ? explore.bold("MFU ", simtrain.number(one.mfu, simtrain.percent(one.mfu)))
        : simtrain.element("span", { class: "bad" }, "does not fit")],
      faint: !fits(one),
    })), scale, { marker: capacity });
    plot.append(explore.legend(["var(--blue)", "weights, gradients, optimizer states"], ["var(--orange)", "activations and buffers"],
      ["", `memory of a GPU: ${simtrain.bytes(capacity)}`, "limit"]));
  };
  const best = (choices) => choices.filter(fits).sort((one, other) => other.mfu - one.mfu)[0];
  const most = (choices, strategy) => choices.filter((one) => one.strategy === strategy && fits(one)).at(-1);

  // States how much faster than full recompute the present work trains, and the gain in Table 5.
  const gain = (model, choices, microbatch) => {
    const [present, full] = ["selective+sequence", "full"].map((name) => choices.find((one) => one.strategy === name));
    if (!fits(present) || !fits(full)) return [];
    const paper = microbatch === data.models[model].b ? ` (paper, Table 5: ${simtrain.percent(data.paper.gains[model])})` : "";
    return [" Both techniques together train ", explore.bold(simtrain.percent(present.sequences_per_s / full.sequences_per_s - 1)),
      ` more sequences per second than full recompute${paper}.`];
  };

  const batches = (model, freed, microbatch) => {
    const choices = freed.microbatches.filter((one) => one.microbatch === microbatch);
    memory(explore.plot("freed"), choices, freed.capacity_bytes);
    const largest = (strategy) => {
      const one = most(freed.microbatches, strategy);
      return one ? [explore.bold(String(one.microbatch)), ` (MFU ${simtrain.percent(one.mfu)})`] : [explore.bold("none")];
    };
    const fitting = choices.filter(fits).length;
    explore.say("freed", `At `, simtrain.element("var", {}, "b"), ` = ${microbatch}, `, explore.bold(`${fitting} of ${choices.length}`), ` strategies fit. The largest microbatch of the ${model} model that fits: `,
      ...["baseline", "selective+sequence", "full"].flatMap((name, number) => [number ? "; " : "", `${explore.names[name]} `, ...largest(name)]), ".", ...gain(model, choices, microbatch));

    const series = Object.keys(data.strategies).map((strategy) => ({
      colour: explore.colours[strategy], dots: true, strategy,
      points: freed.microbatches.filter((one) => one.strategy === strategy && fits(one)).map((one) => [one.microbatch, 100 * one.mfu]),
    })).filter(({ points }) => points.length);
    const sizes = [...new Set(series.flatMap(({ points }) => points.map(([size]) => size)))].sort((a, b) => a - b);
    const top = 1.1 * Math.max(...series.flatMap(({ points }) => points.map(([, value]) => value)));
    explore.chart(explore.plot("batch"), {
      x: { from: 0.9, to: Math.max(2, sizes.at(-1)) + 0.2, ticks: sizes, text: String, title: "microbatch size b" },
      y: { from: 0, to: top, ticks: simtrain.ticks(0, top, 5).found, text: (value) => `${value}%` },
      series, height: 260, label: `Model FLOPs utilization of the ${model} model by microbatch size.`,
    });
    explore.plot("batch").append(explore.legend(...series.map(({ colour, strategy }) => [colour, explore.names[strategy]])));
  };

  const pipelines = (model, freed, pipeline) => {
    const sizes = [...new Set(freed.pipelines.map((one) => one.pipeline))];
    const chosen = sizes.includes(pipeline) ? pipeline : sizes[0];
    const gpus = (stages) => freed.pipelines.find((one) => one.pipeline === stages).num_gpus;
    const buttons = sizes.map((stages) => simtrain.element("label", {},
      simtrain.element("input", { type: "radio", name: "pipeline", value: stages, ...(stages === chosen ? { checked: "" } : {}) }),
      simtrain.element("span", {}, `${stages} stage${stages > 1 ? "s" : ""}, ${explore.count(gpus(stages))} GPUs`)));
    const set = simtrain.element("fieldset", { class: "choice" }, simtrain.element("legend", {}, "Pipeline"), ...buttons);
    const holder = document.getElementById("pipeline-choice");
    const hadFocus = holder.contains(document.activeElement);
    holder.replaceChildren(set);
    if (hadFocus) set.querySelector(":checked").focus();
    const choices = freed.pipelines.filter((one) => one.pipeline === chosen);
    memory(explore.plot("pipeline"), choices, freed.capacity_bytes);
    const least = Object.keys(data.strategies).map((strategy) => [strategy, freed.pipelines.find((one) => one.strategy === strategy && fits(one))]);
    const winner = best(choices);
    explore.say("pipeline", `Smallest of these numbers of GPUs on which the ${model} model fits: `, ...least.flatMap(([strategy, one], number) =>
      [number ? "; " : "", `${explore.names[strategy]} `, explore.bold(one ? explore.count(one.num_gpus) : "none")]), ". ",
      winner ? `On ${explore.count(winner.num_gpus)} GPUs, the fastest is ${explore.names[winner.strategy]}: ${simtrain.seconds(winner.iteration_time_s)} per iteration.` : "");
  };

  explore.figures.push(({ model: wanted, microbatch, pipeline }) => {
    const model = data.freed[wanted] ? wanted : Object.keys(data.freed)[0], freed = data.freed[model];
    batches(model, freed, microbatch);
    pipelines(model, freed, pipeline);
  });
  document.getElementById("pipeline-choice").addEventListener("change", ({ target }) => explore.change({ pipeline: Number(target.value) }));
}
