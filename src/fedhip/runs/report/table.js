// Tables that sort: by a click on a column's head or by the keyboard, numbers as numbers, missing values last.
"use strict";
const names = new Intl.Collator("en", { numeric: true });

function compare(a, b, numeric) {
  return numeric ? Number(a) - Number(b) : names.compare(a, b);
}

function sort(table, column, direction) {
  const body = table.tBodies[0];
  const numeric = table.tHead.rows[0].cells[column].dataset.type === "number";
  const value = (row) => row.cells[column].dataset.value ?? "";
  const rows = [...body.rows];
  rows.sort((a, b) => {
    const [x, y] = [value(a), value(b)];
    if (x === "" || y === "") return (x === "") - (y === "");
    return direction * compare(x, y, numeric);
  });
  body.append(...rows);
}

for (const table of document.querySelectorAll("table.sortable")) {
  for (const hint of table.querySelectorAll(".hint")) hint.hidden = false;
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    head.setAttribute("aria-sort", "none");
    button.addEventListener("click", () => {
      const direction = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
      for (const other of heads) other.setAttribute("aria-sort", "none");
      head.setAttribute("aria-sort", direction === 1 ? "ascending" : "descending");
      sort(table, column, direction);
    });
  });
}
