// Shows the exact value and the source of a selected number. A click on a number, or on a mark or a
// bar whose title has numbers, selects it. Keyboard: the numbers of cards take the focus. In a table
// or picture that has the focus, Enter moves to its first number and the arrow keys to the others.
// Enter selects a number, Escape closes.
"use strict";

{
  const card = simtrain.element("aside", { id: "source", hidden: "", role: "status" });
  document.body.append(card);
  const element = (tag, ...words) => simtrain.element(tag, {}, ...words);
  const link = (words) => simtrain.element("a", { href: "#sources" }, words);
  const place = (pointer) => simtrain.element("code", { class: "place" }, pointer);
  // Returns a text of the data, which states its place as texts of the page do.
  const quoted = (pointer) => simtrain.element("span", { "data-text": pointer }, simtrain.scalar(simtrain.at(pointer)));
  let chosen = null;

  const close = () => {
    card.hidden = true;
    chosen?.focus?.();
    chosen = null;
  };

  // Returns the index of the point of a sweep to which a number belongs, or null.
  const indexOf = (pointer) => {
    const found = /^\/(?:panels\/\d+\/points|fronts\/[^/]*|heat_map\/panels\/[^/]*)\/\d+(?=\/)|^\/scaling(?:_efficiency)?(\/.*)/.exec(pointer);
    return found ? simtrain.at(found[1] ? `/scaling_points${found[1]}` : found[0]).index ?? null : null;
  };

  // Returns what a sweep's data say about a point: scenario, settings, profile, extrapolated share.
  const aboutPoint = (index) => {
    const point = simtrain.data.points?.[index], place = `/points/${index}`;
    if (!point) return [];
    const line = (name, ...words) => element("p", element("strong", name), ": ", ...words);
    const settings = Object.keys(point.settings).flatMap((name) =>
      [", ", simtrain.element("span", { class: "setting" }, name), " ", quoted(`${place}/settings/${simtrain.escaped(name)}`)]);
    const lines = [line("Scenario", quoted(`${place}/base`)), line("Point", ...settings.slice(1))];
    const profile = simtrain.data.profiles[point.profile];
    const about = profile ? [": ", quoted(`/profiles/${simtrain.escaped(point.profile)}/description`)] : [];
    lines.push(line("Hardware profile", quoted(`${place}/profile`), ...about));
    const share = point.extrapolated_compute;
    const words = share === null ? ["unknown, because the profile has changed since the sweep ran"]
      : [simtrain.number(share, simtrain.percent(share), { at: `${place}/extrapolated_compute` }), " of kernel time is for shapes outside the range that the profile was fitted on"];
    lines.push(line("Extrapolated", ...words));
    return [...lines, link("Entries of the profile and their sources")];
  };

  const aboutEntries = (pointer) => {
    const operator = /^(\/runs\/\d+\/operators)(\/operators\/\d+)\//.exec(pointer);
    if (!operator) return [];
    return Object.keys(simtrain.at(operator[1] + operator[2]).entries).map((name) =>
      element("p", element("strong", name), ": ", quoted(`${operator[1]}/entries/${name}/source`)));
  };

  const linesOf = (number) => {
    const { at: pointer, of, minus } = number.dataset;
    const find = (one) => new RegExp(`^(?:${one.places})$`).exec(pointer);
    const source = simtrain.data.number_sources.find(find);
    const exact = number.cloneNode();
    exact.textContent = number.value ?? number.dataset.value;
    const where = element("p", "Shown as ", number.cloneNode(true), ". Place in the data: ", place(pointer));
    if (of) where.append(", divided by ", place(of));
    if (minus) where.append(", minus ", place(minus));
    const lines = [element("h2", exact), where, element("p", source.meaning)];
    const index = indexOf(pointer);
    if (source.command) {
      const groups = find(source), data = simtrain.data;
      const run = pointer.startsWith("/runs/") ? data.runs[Number(pointer.split("/")[2])] : null;
      const names = run?.name ?? (data.runs ?? []).map((one) => one.name).join(" ");
      const command = source.command.replace("FIGURE", groups[1]).replace("CLUSTER", run?.profile.name ?? "")
        .replace("FOLDER", data.folder ?? "").replace("INDEX", index).replace("X", names);
      lines.push(element("p", "Printed by ", place(`simtrain ${command} --json`), " at ", place(source.prefix + groups.at(-1))));
    }
    const entries = aboutEntries(pointer);
    lines.push(...aboutPoint(index), ...entries);
    if (!entries.length && source.has_parts) lines.push(link("Its parts and profile entries"));
    return lines;
  };

  const show = (target, numbers) => {
    chosen = target;
    const button = simtrain.element("button", { type: "button" }, "Close");
    button.addEventListener("click", close);
    card.replaceChildren(...numbers.flatMap(linesOf), button);
    card.hidden = false;
  };

  // Returns the numbers that an element shows, or that its title has.
  const numbersOf = (target) => {
    const number = target.closest("main :is(data, tspan)[data-at]");
    if (number) return [number, [number]];
    const titled = target.closest("main [data-title], main svg .mark");
    if (!titled) return null;
    const title = document.createElement("template");
    title.innerHTML = titled.dataset.title ?? titled.querySelector("title").innerHTML;
    return [titled, [...title.content.querySelectorAll("data")]];
  };

  for (const number of document.querySelectorAll(".cards data[data-at]")) number.tabIndex = 0;
  document.addEventListener("click", (event) => {
    const found = numbersOf(event.target);
    if (found?.[1].length) show(...found);
  });
  // Moves the focus to a number of the table or picture of another one, `by` numbers further.
  const move = (region, from, by) => {
    const numbers = [...region.querySelectorAll("data[data-at], svg .mark, [data-title]")];
    const next = numbers[Math.min(Math.max(numbers.indexOf(from) + by, 0), numbers.length - 1)];
    next?.setAttribute("tabindex", "-1");
    next?.focus();
  };
  const STEPS = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };
  document.addEventListener("keydown", (event) => {
    const region = event.target.closest("main :is(.scroll, .chart-box)");
    const found = event.target === region ? null : numbersOf(event.target);
    if (event.key === "Escape" && !card.hidden) close();
    else if (event.key === "Escape" && region) region.focus();
    else if (event.key === "Enter" && found?.[1].length) show(...found);
    else if (event.key === "Enter" && event.target === region) move(region, null, 1);
    else if (event.key in STEPS && region && found) move(region, found[0], STEPS[event.key]);
    else return;
    event.preventDefault();
  });
  // Print shows folded parts open.
  let folded = [];
  addEventListener("beforeprint", () => {
    folded = [...document.querySelectorAll("details:not([open])")];
    folded.forEach((one) => { one.open = true; });
  });
  addEventListener("afterprint", () => folded.forEach((one) => { one.open = false; }));
}
