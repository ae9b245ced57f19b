// Sorting, filtering and copying. The page is complete without them, so that their controls are made here.
"use strict";

const key = (row, column) => {
  const text = row.cells[column].textContent.trim();
  const number = parseFloat(text.replace(/,/g, "").replace("−", "-"));
  return Number.isNaN(number) ? text : number;
};

const compare = (a, b) => {
  if (a === "" || b === "") return (a === "") - (b === "");
  if (typeof a === "number" && typeof b === "number") return a - b;
  return String(a).localeCompare(String(b), "en", { numeric: true });
};

const sort = (table, heading) => {
  const body = table.tBodies[0];
  const sign = heading.getAttribute("aria-sort") === "ascending" ? -1 : 1;
  const keyed = [...body.rows].map((row) => [key(row, heading.cellIndex), row]);
  // Empty cells stay last in both directions.
  keyed.sort(([a], [b]) => (a === "" || b === "" ? 1 : sign) * compare(a, b));
  body.append(...keyed.map(([, row]) => row));
  for (const other of heading.parentNode.cells) other.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", sign === 1 ? "ascending" : "descending");
};

const makeSortable = (table) => {
  for (const heading of table.tHead.rows[0].cells) {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...heading.childNodes);
    button.addEventListener("click", () => sort(table, heading));
    heading.append(button);
  }
};

// A row as text: each cell, and `name=value` for those who remember a parameter.
const searchable = (table) => {
  const names = [...table.tHead.rows[0].cells].map((cell) => cell.textContent.trim().toLowerCase());
  const describe = (row) =>
    [...row.cells].map((cell, column) => `${cell.textContent} ${names[column]}=${cell.textContent}`).join(" ").toLowerCase() + " ";
  return [...table.tBodies[0].rows].map((row) => [row, describe(row)]);
};

const makeFilterable = (table) => {
  const controls = table.closest("details").querySelector(".filter");
  const input = controls.querySelector("input");
  const output = controls.querySelector("output");
  const rows = searchable(table);
  const matches = (text, word) => text.includes(word.includes("=") ? `${word} ` : word);
  input.addEventListener("input", () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const [row, text] of rows) {
      row.hidden = !words.every((word) => matches(text, word));
      shown += !row.hidden;
    }
    output.textContent = words.length ? `${shown} of ${rows.length}` : "";
  });
  controls.hidden = false;
};

const makeCopyable = (block) => {
  const button = document.createElement("button");
  const text = block.querySelector("pre");
  button.type = "button";
  button.textContent = "Copy";
  button.setAttribute("aria-label", `Copy: ${text.getAttribute("aria-label")}`);
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text.textContent);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(text); // a file opened from disk may not write the clipboard: offer Ctrl-C
      button.textContent = "Selected";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });
  block.append(button);
};

document.querySelectorAll("table.sortable").forEach(makeSortable);
document.querySelectorAll("table.filterable").forEach(makeFilterable);
if (navigator.clipboard) document.querySelectorAll(".code").forEach(makeCopyable);
