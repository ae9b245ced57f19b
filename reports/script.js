// Sorting, filtering, copying, and the row of a mark beside the pointer. The page is complete without them, so that their controls
// are made here.
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

// The cells of a row, by the headings of their columns.
const describeRow = (row) => {
  const list = document.createElement("dl");
  const add = (heading, text) => {
    const [pair, name, value] = ["div", "dt", "dd"].map((tag) => document.createElement(tag));
    [name.textContent, value.textContent] = [heading, text];
    pair.append(name, value);
    list.append(pair);
  };
  const headings = row.closest("table").tHead.rows[0].cells;
  list.className = "tip";
  const implementation = row.closest("table").dataset.implementation;
  if (implementation) add("implementation", implementation);
  [...row.cells].forEach((cell, column) => {
    if (cell.textContent.trim()) add(headings[column].textContent, cell.textContent);
  });
  return list;
};

// Marks of a figure link to rows: pointed at, or reached by the arrow keys, they show theirs. A figure is one tab stop;
// a screen reader hears the label of a mark from the status line, since the figure itself is one image.
const status = document.createElement("div");
status.className = "hidden";
status.setAttribute("role", "status");
const makeTelling = (figure) => {
  const marks = [...figure.querySelectorAll("a")];
  if (!marks.length) return;
  let tip = null;
  const alike = (mark) => document.querySelectorAll(`a[href="${mark.getAttribute("href")}"]`);
  const hide = () => {
    tip?.remove();
    document.querySelectorAll("a.pointed").forEach((mark) => mark.classList.remove("pointed"));
  };
  const show = (mark) => {
    const row = document.querySelector(mark.getAttribute("href"));
    hide();
    if (!row) return;
    const at = mark.getBoundingClientRect();
    const end = mark.matches(":hover") && at.width > 60 ? pointer : { x: at.right, y: at.top }; // the pointer's position on a long line
    tip = describeRow(row);
    document.body.append(tip);
    const left = end.x + 14 + tip.offsetWidth < innerWidth ? end.x + 14 : Math.max(4, Math.min(at.left, end.x) - tip.offsetWidth - 14);
    tip.style.left = `${left}px`;
    tip.style.top = `${Math.max(4, Math.min(end.y + 10, innerHeight - tip.offsetHeight - 4))}px`;
    alike(mark).forEach((other) => other.classList.add("pointed"));
  };
  const pointer = { x: 0, y: 0 };
  const hit = (event) => event.target.closest?.("a");
  figure.addEventListener("pointerover", (event) => {
    [pointer.x, pointer.y] = [event.clientX, event.clientY];
    if (hit(event)) show(hit(event));
  });
  figure.addEventListener("pointerout", hide);
  figure.addEventListener("focusin", (event) => {
    if (!hit(event)) return;
    show(hit(event));
    status.textContent = hit(event).querySelector("[aria-label]")?.getAttribute("aria-label") ?? "";
  });
  figure.addEventListener("focusout", hide);
  figure.addEventListener("click", (event) => {
    const row = hit(event) && document.querySelector(hit(event).getAttribute("href"));
    if (!row) return;
    row.hidden = false;
    for (let parent = row; parent; parent = parent.parentElement) if (parent.tagName === "DETAILS") parent.open = true;
    hide();
  });
  figure.addEventListener("keydown", (event) => {
    if (event.key === "Escape") hide();
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    marks[Math.max(0, marks.indexOf(document.activeElement) + step)]?.focus();
  });
};

document.body.append(status);
document.querySelectorAll(".plot").forEach(makeTelling);
document.querySelectorAll("table.sortable").forEach(makeSortable);
document.querySelectorAll("table.filterable").forEach(makeFilterable);
if (navigator.clipboard) document.querySelectorAll(".code").forEach(makeCopyable);
