// A table to read, sort and pick a row from. Text reaches the page only as textContent.

function show(value) {
  if (value === null || value === undefined) return "–";
  if (typeof value === "boolean") return value ? "yes" : "no";
  return typeof value === "number" ? digits(value) : String(value);
}

function compare(a, b) {
  const absent = (v) => v === null || v === undefined;
  if (absent(a) || absent(b)) return absent(a) - absent(b);
  return typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
}

function render({ model, el, signal }) {
  const root = document.createElement("div");
  root.className = "iw-table";
  const caption = document.createElement("div");
  caption.className = "iw-table-caption";
  const scroll = document.createElement("div");
  scroll.className = "iw-table-scroll";
  root.append(caption, scroll);
  el.append(root);
  let order = [];
  let sorting = null; // { column, falling }
  let body = null;

  const rowOf = (node) => node?.closest?.("tr[data-index]");

  function mark(focus) {
    const selected = model.get("selected");
    for (const row of body?.rows ?? []) {
      const mine = Number(row.dataset.index) === selected;
      row.setAttribute("aria-selected", String(mine));
      row.tabIndex = mine || (selected < 0 && row === body.rows[0]) ? 0 : -1;
      if (mine && focus) row.focus();
    }
  }

  function build() {
    const columns = model.get("columns");
    const rows = model.get("rows");
    caption.textContent = model.get("caption");
    caption.hidden = !caption.textContent;
    scroll.style.maxHeight = `${model.get("height")}px`;
    scroll.textContent = "";
    body = null;
    if (!rows.length) {
      const message = document.createElement("div");
      message.className = "iw-table-empty";
      message.textContent = model.get("empty");
      scroll.append(message);
      return;
    }
    order = rows.map((_, i) => i);
    if (sorting && sorting.column < columns.length) {
      const { column, falling } = sorting;
      order.sort((a, b) => (falling ? -1 : 1) * compare(rows[a][column], rows[b][column]) || a - b);
    }
    const table = document.createElement("table");
    table.setAttribute("role", "grid");
    table.setAttribute("aria-label", model.get("caption") || "table");
    const head = table.createTHead().insertRow();
    columns.forEach((column, index) => {
      const cell = document.createElement("th");
      cell.textContent = column.label;
      cell.title = column.title ?? "";
      cell.tabIndex = 0;
      cell.dataset.column = index;
      cell.dataset.lmSuppressShortcuts = "true";
      cell.className = column.align === "right" ? "iw-right" : "";
      if (column.width) cell.style.width = column.width;
      const mine = sorting?.column === index;
      cell.dataset.mark = mine ? (sorting.falling ? "▾" : "▴") : "";
      cell.setAttribute("aria-sort", mine ? (sorting.falling ? "descending" : "ascending") : "none");
      head.append(cell);
    });
    body = table.createTBody();
    for (const index of order) {
      const row = body.insertRow();
      row.dataset.index = index;
      row.dataset.lmSuppressShortcuts = "true"; // on the focused element itself, else Lab's command mode eats the arrows
      rows[index].forEach((value, i) => {
        const cell = row.insertCell();
        cell.textContent = show(value);
        cell.dir = "auto";
        if (columns[i].align === "right") cell.className = "iw-right";
        if (typeof value === "string" && value.length > 40) cell.title = value;
      });
    }
    scroll.append(table);
    mark(false);
  }

  function pick(index) {
    send(model, { selected: index });
  }

  function sortBy(column) {
    sorting = { column, falling: sorting?.column === column ? !sorting.falling : false };
    build();
    scroll.querySelector(`th[data-column="${column}"]`)?.focus();
  }

  root.addEventListener("click", (event) => {
    const heading = event.target.closest("th");
    if (heading) return sortBy(Number(heading.dataset.column));
    const row = rowOf(event.target);
    if (row) pick(Number(row.dataset.index));
  }, { signal });

  root.addEventListener("keydown", (event) => {
    const heading = event.target.closest("th");
    if (heading && (event.key === "Enter" || event.key === " ")) {
      event.preventDefault();
      event.stopPropagation();
      return sortBy(Number(heading.dataset.column));
    }
    const row = rowOf(event.target);
    if (!row) return;
    const steps = { ArrowDown: row.nextElementSibling, ArrowUp: row.previousElementSibling, Home: body.rows[0], End: body.rows[body.rows.length - 1] };
    if (event.key in steps) steps[event.key]?.focus();
    else if (event.key === "Enter" || event.key === " ") pick(Number(row.dataset.index));
    else if (event.key === "Escape") pick(-1);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }, { signal });

  const remark = () => mark(root.contains(document.activeElement) && document.activeElement.tagName === "TR");
  const structure = "change:columns change:rows change:caption change:empty change:height";
  model.on(structure, build);
  model.on("change:selected", remark);
  build();
  return () => {
    model.off(structure, build);
    model.off("change:selected", remark);
  };
}

export default { render };
