// Section 2: the sequence length at which the attention core exceeds the rest of the layer.
"use strict";

{
  const lengths = explore.data.sliders.s, [first, last] = [lengths[0], lengths.at(-1)];

  explore.figures.push((setting) => {
    const { sizes, model } = setting, divided = sizes.t > 1 ? "sequence" : "tensor";
    const bytes = (degree, split, s) =>
      explore.layerBytes(split, "none", { ...sizes, s }, explore.ofDegree(degree, split, "none"));
    const line = (degree, split) => [first, last].map((s) => [s, bytes(degree, split, s)]);
    const series = [
      { colour: "var(--green)", points: line(1, divided) },
      { colour: "var(--vermillion)", points: line(2, divided) },
    ];
    const splits = [divided];
    if (sizes.t > 1) {
      series.push({ colour: "var(--green)", points: line(1, "tensor"), dashed: true });
      splits.push("tensor");
    }
    const found = splits.map((split) => explore.crossing(split, sizes));
    const marks = found.map((s, number) => ({ s, number }))
      .filter(({ s }) => s >= first && s <= last)
      .map(({ s, number }) => ({ x: s, y: bytes(2, divided, s), text: `s = ${explore.count(s)}`, below: number === 0 }));
    const values = series.flatMap(({ points }) => points.map(([, value]) => value));
    const [from, to] = [Math.min(...values) / 1.3, Math.max(...values) * 1.3];
    const share = bytes(2, divided, sizes.s) / explore.layerBytes(divided, "none", sizes);
    const subject = explore.isTable3(setting) ? `the ${model} model` : "these sizes";
    const coefficients = [1, 2].map((degree) => explore.ofDegree(degree, divided, "none")
      .reduce((sum, { coefficient }) => sum + coefficient, 0));
    explore.say("crossing", `For ${subject}, ${coefficients[0]}`, simtrain.element("var", {}, "sbh"), ` = ${coefficients[1]}`,
      simtrain.element("var", {}, "as"), simtrain.element("sup", {}, "2"), simtrain.element("var", {}, "b"), " at ",
      explore.bold("s = ", simtrain.number(found[0], explore.count(found[0], 1)), " tokens"),
      ". At ", explore.count(sizes.s), " tokens the attention core is ", explore.bold(simtrain.percent(share)), " of the layer",
      ...(sizes.t > 1 ? [`. Tensor parallelism over ${sizes.t} ranks alone moves the crossing to `, simtrain.number(found[1], explore.count(found[1], 1)), "."] : ["."]));

    const units = [["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]];
    const ticks = units.flatMap(([, size]) => [1, 10, 100].map((one) => one * size)).filter((one) => one >= from && one <= to).sort((a, b) => a - b);
    explore.chart(explore.plot("crossing"), {
      x: { from: first, to: last, log: true, ticks: Array.from({ length: 10 }, (_, n) => 256 * 2 ** n), text: explore.tokens, title: "sequence length s, tokens" },
      y: { from, to, log: true, ticks, text: simtrain.bytes.bind(simtrain) },
      series, marks, here: sizes.s, height: 380,
      label: `The attention core exceeds the rest of the layer from ${explore.count(found[0], 1)} tokens.`,
    });
    explore.plot("crossing").append(explore.legend(
      ["var(--vermillion)", "attention core, grows with s²"],
      ["var(--green)", sizes.t > 1 ? "the rest, grows with s (sequence parallel)" : "the rest, grows with s"],
      ...(sizes.t > 1 ? [["var(--green)", "the rest under tensor parallelism alone", "swatch dashed"]] : [])));
  });
}
