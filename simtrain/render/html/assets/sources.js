// Shows the exact value and the source of a selected number: what it is, its row and column, and the
// command that prints it. Keyboard: the numbers of cards take the focus. In a table that has the focus,
// Enter moves to its first number and the arrow keys to the others. Enter selects a number, Escape
// closes.
"use strict";

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
    const words = name ? `${command} --csv --table ${table.dataset.table}` : command;
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
  for (const number of document.querySelectorAll(".cards data")) number.tabIndex = 0;
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
  // Print shows folded parts open.
  let folded = [];
  addEventListener("beforeprint", () => {
    folded = [...document.querySelectorAll("details:not([open])")];
    folded.forEach((part) => { part.open = true; });
  });
  addEventListener("afterprint", () => folded.forEach((part) => { part.open = false; }));
}
