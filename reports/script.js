// Sorting, filtering, copying, and rows told beside a pointer. The page is complete without them, so that their controls
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

// What a row says, by the headings of its columns.
const told = (row) => {
  const list = document.createElement("dl");
  const headings = row.closest("table").tHead.rows[0].cells;
  list.className = "tip";
  [...row.cells].forEach((cell, column) => {
    if (!cell.textContent.trim()) return;
    const [pair, name, value] = ["div", "dt", "dd"].map((tag) => document.createElement(tag));
    name.textContent = headings[column].textContent;
    value.textContent = cell.textContent;
    pair.append(name, value);
    list.append(pair);
  });
  return list;
};

// Marks of a figure link to rows: pointed at, or reached by the arrow keys, they show theirs.
const makeTelling = (figure) => {
  const marks = [...figure.querySelectorAll("a")];
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
    const end = mark.matches(":hover") && at.width > 60 ? pointer : { x: at.right, y: at.top }; // of a long line the hit place
    tip = told(row);
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
  figure.addEventListener("focusin", (event) => hit(event) && show(hit(event)));
  figure.addEventListener("focusout", hide);
  figure.addEventListener("click", (event) => {
    const row = hit(event) && document.querySelector(hit(event).getAttribute("href"));
    if (!row) return;
    row.hidden = false;
    for (let each = row; each; each = each.parentElement) if (each.tagName === "DETAILS") each.open = true;
    hide();
  });
  figure.addEventListener("keydown", (event) => {
    if (event.key === "Escape") hide();
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    const next = marks[marks.indexOf(document.activeElement) + step];
    if (!step || !hit(event)) return;
    event.preventDefault();
    next?.focus();
  });
  marks[0]?.setAttribute("tabindex", "0");
};

document.querySelectorAll(".plot").forEach(makeTelling);
document.querySelectorAll("table.sortable").forEach(makeSortable);
document.querySelectorAll("table.filterable").forEach(makeFilterable);
if (navigator.clipboard) document.querySelectorAll(".code").forEach(makeCopyable);
