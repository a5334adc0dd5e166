// Turns each heading of tables of class "sortable" into a button that sorts by its column.
"use strict";

for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  const headings = [...table.tHead.rows[0].cells];
  const keyOf = (row, column) => {
    const cell = row.cells[column];
    const number = cell.querySelector("data");
    return number ? Number(number.value) : cell.textContent;
  };
  headings.forEach((heading, column) => {
    const button = simtrain.element("button", { type: "button" }, heading.textContent);
    heading.replaceChildren(button);
    button.addEventListener("click", () => {
      const isNumber = heading.className === "number";
      const wasDescending = heading.getAttribute("aria-sort") === "descending";
      const wasAscending = heading.getAttribute("aria-sort") === "ascending";
      const sign = (isNumber ? wasDescending : !wasAscending) ? 1 : -1;
      headings.forEach((one) => one.removeAttribute("aria-sort"));
      heading.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
      const rows = [...body.rows].map((row) => [keyOf(row, column), row]);
      rows.sort(([a], [b]) => {
        if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1; // empty cells last
        return sign * (typeof a === "number" ? a - b : a.localeCompare(b));
      });
      body.replaceChildren(...rows.map(([, row]) => row));
    });
  });
}
