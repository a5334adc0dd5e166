// Shows the exact value and the source of a selected number. Keyboard: the numbers of the section
// Answer take the focus; Enter selects, Escape closes.
"use strict";

{
  const card = document.createElement("aside");
  card.id = "source";
  card.hidden = true;
  card.setAttribute("role", "status");
  document.body.append(card);
  const element = (tag, text) => Object.assign(document.createElement(tag), { textContent: text });
  let chosen = null;

  const close = () => {
    card.hidden = true;
    chosen?.focus?.();
    chosen = null;
  };
  const show = (number) => {
    chosen = number;
    const pointer = number.dataset.at;
    const source = simtrain.data.number_sources.find((one) => new RegExp(`^(?:${one.places})$`).test(pointer));
    const run = pointer.startsWith("/runs/") ? simtrain.data.runs[Number(pointer.split("/")[2])] : null;
    card.replaceChildren(element("h2", number.value));
    const place = element("p", "");
    place.append("Shown as ", number.textContent, ". Place in the data: ", element("code", pointer));
    if (number.dataset.of) place.append(", divided by ", element("code", number.dataset.of));
    card.append(place);
    if (source) {
      const command = source.command.replace("X", run?.name ?? "X").replace("CLUSTER", run?.profile.name ?? "");
      const printed = element("p", "Printed by ");
      printed.append(element("code", `simtrain ${command}`));
      card.append(element("p", source.meaning), printed);
    }
    const operator = /^(\/runs\/\d+\/operators\/operators\/\d+)\//.exec(pointer);
    if (operator) {
      const entries = simtrain.data.runs[Number(pointer.split("/")[2])].operators.entries;
      for (const name of Object.keys(simtrain.at(operator[1]).entries)) {
        const line = element("p", "");
        line.append(element("strong", name), `: ${entries[name].source}`);
        card.append(line);
      }
    } else if (source?.explained) {
      const link = element("a", "Its parts and profile entries");
      link.href = "#sources";
      card.append(link);
    }
    const button = element("button", "Close");
    button.type = "button";
    button.style.marginTop = "0.6rem";
    button.addEventListener("click", close);
    card.append(document.createElement("br"), button);
    card.hidden = false;
  };
  for (const number of document.querySelectorAll(".cards data[data-at]")) number.tabIndex = 0;
  document.addEventListener("click", (event) => {
    const number = event.target.closest("main data[data-at]");
    if (number) show(number);
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !card.hidden) close();
    if (event.key === "Enter" && event.target.matches("main data[data-at]")) show(event.target);
  });
  // Print shows folded parts open.
  let folded = [];
  addEventListener("beforeprint", () => {
    folded = [...document.querySelectorAll("details:not([open])")];
    folded.forEach((one) => { one.open = true; });
  });
  addEventListener("afterprint", () => folded.forEach((one) => { one.open = false; }));
}
