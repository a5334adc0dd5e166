// Turns each heading of long tables into a button that sorts by its column. While a table is sorted,
// rows that sum up others are hidden. The third click restores the order.
"use strict";

const LEAST_ROWS = 8;

for (const table of document.querySelectorAll("table[data-table]")) {
  const body = table.tBodies[0], order = [...body.rows];
  if (!table.tHead || order.length < LEAST_ROWS) continue;
  table.classList.add("sortable");
  const headings = [...table.tHead.rows[0].cells];
  const keyOf = (row, column) => {
    const cell = row.cells[column], number = cell.querySelector("data");
    return number ? Number(number.value) : cell.textContent;
  };
  const compare = (a, b) => {
    if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1; // empty cells last
    return typeof a === "number" ? b - a : a.localeCompare(b);
  };
  headings.forEach((heading, column) => {
    if (!heading.textContent) return;
    const button = simtrain.element("button", { type: "button" }, heading.textContent);
    heading.replaceChildren(button);
    // Numbers begin with the largest, texts with A.
    const directions = heading.className === "number" ? ["descending", "ascending"] : ["ascending", "descending"];
    button.addEventListener("click", () => {
      const next = directions[directions.indexOf(heading.getAttribute("aria-sort")) + 1];
      headings.forEach((other) => other.removeAttribute("aria-sort"));
      for (const row of order) row.hidden = Boolean(next) && row.classList.contains("strong");
      if (!next) return body.replaceChildren(...order);
      heading.setAttribute("aria-sort", next);
      const sign = next === directions[0] ? 1 : -1;
      const rows = order.map((row) => [keyOf(row, column), row]);
      rows.sort(([a], [b]) => (typeof a === typeof b ? sign : 1) * compare(a, b));
      body.replaceChildren(...rows.map(([, row]) => row));
    });
  });
}
