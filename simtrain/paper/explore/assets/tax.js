// Section 4: time of a layer with and without recompute.
"use strict";

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

    const series = ["selective", "full"].map((recompute) => ({
      colour: recompute === "full" ? "var(--grey)" : "var(--green)", dots: true,
      points: data.lengths.map((s, number) => [s, 100 * (total(tax[split][recompute][number]) / total(tax.tensor.none[number]) - 1)]),
    }));
    const values = series.flatMap(({ points }) => points.map(([, value]) => value));
    const to = 1.08 * Math.max(...values), from = Math.min(0, 1.2 * Math.min(...values));
    explore.chart(explore.plot("growth"), {
      x: { from: 0.9 * data.lengths[0], to: 1.1 * data.lengths.at(-1), log: true, ticks: data.lengths, text: explore.tokens, title: "sequence length s, tokens" },
      y: { from, to, ticks: simtrain.ticks(0, to, 5).found, text: (value) => `${value}%` },
      series, here: length, height: 260,
      label: `Overhead of selective and full recompute by sequence length, ${model} model.`,
    });
    explore.plot("growth").append(explore.legend(["var(--green)", `selective recompute${sequence ? ", sequence parallel" : ""}`],
      ["var(--grey)", `full recompute${sequence ? ", sequence parallel" : ""}`]));
  });
}
