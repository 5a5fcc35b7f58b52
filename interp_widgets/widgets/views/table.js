// A table to read, sort, pick a row from and write into. Text reaches the page only as textContent.

function show(value, places) {
  if (value === null || value === undefined) return "–";
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value !== "number") return String(value);
  if (!places || !Number.isFinite(value)) return digits(value);
  return tiny(value) ? "< 0.001" : value.toFixed(places).replace("-", "−");
}

// Too small for the decimals of its column; the number itself is in the cell's tooltip.
const tiny = (value) => typeof value === "number" && value !== 0 && Math.abs(value) < 1e-3;

// The decimals that the numbers of a column share, 3 at most; 0 where each is written by itself: whole or large numbers.
function placesOf(values) {
  const numbers = values.filter((value) => typeof value === "number" && Number.isFinite(value));
  if (numbers.every(Number.isInteger) || numbers.some((value) => Math.abs(value) >= 1000)) return 0;
  const each = numbers.filter((value) => Math.abs(value) >= 1e-3).map((value) => digits(value).split(".")[1]?.length ?? 0);
  const least = each.length && numbers.some(tiny) ? 1 : 0; // 0.99999 is written without decimals beside "< 0.001"
  return Math.min(3, Math.max(least, ...each));
}

const LOW = 200; // pixels

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
  let places = []; // decimals of each column
  let sorting = null; // { column, falling }
  let picked = false; // whether the picked row has just changed
  let body = null;
  let editing = null; // { key, column, editor }: the cell that is being written into
  let building = false;

  const rowOf = (node) => node?.closest?.("tr[data-index]");
  const cellOf = (node) => node?.closest?.("td[data-edit]");
  const keyOf = (index) => model.get("row_keys")[index] ?? String(index);
  const writable = () => model.get("writable") !== false;

  function mark(focus) {
    const selected = model.get("selected");
    for (const row of body?.rows ?? []) {
      const mine = Number(row.dataset.index) === selected;
      row.setAttribute("aria-selected", String(mine));
      row.tabIndex = mine || (selected < 0 && row === body.rows[0]) ? 0 : -1;
      for (const cell of row.querySelectorAll("td[data-edit]")) cell.tabIndex = row.tabIndex;
      if (mine && focus) row.focus();
    }
  }

  // A row picked from Python may be out of sight; only the table scrolls, never the page.
  function reveal() {
    const row = body?.querySelector("tr[aria-selected=true]");
    if (!row) return;
    const top = row.offsetTop - (body.parentNode.tHead?.offsetHeight ?? 0);
    const end = row.offsetTop + row.offsetHeight;
    if (top < scroll.scrollTop) scroll.scrollTop = top;
    else if (end > scroll.scrollTop + scroll.clientHeight) scroll.scrollTop = Math.min(top, end - scroll.clientHeight / 2);
  }

  // Rows may change under a reader's hands: what has the focus, or is being written, is found again by its key.
  function held() {
    const focus = document.activeElement;
    if (!root.contains(focus)) return null;
    const row = rowOf(focus);
    if (!row) return null;
    return { key: row.dataset.key, column: editing?.column ?? cellOf(focus)?.dataset.edit ?? null, draft: editing?.editor.read() };
  }

  function restore(was) {
    const row = [...(body?.rows ?? [])].find((one) => one.dataset.key === was.key);
    if (!row) return;
    const cell = was.column && [...row.cells].find((one) => one.dataset.edit === was.column);
    if (!cell) return row.focus({ preventScroll: true });
    if (was.draft === undefined) return cell.focus({ preventScroll: true });
    edit(cell);
    editing?.editor.write(was.draft);
  }

  function build() {
    const columns = model.get("columns");
    const rows = model.get("rows");
    if (rows.some((row) => row.length !== columns.length)) return; // the other half of a change is on its way
    const was = held();
    const top = scroll.scrollTop;
    building = true;
    try {
      fill(columns, rows);
    } finally {
      building = false;
    }
    scroll.scrollTop = top;
    if (picked) reveal();
    if (was) restore(was);
  }

  const described = () => [model.get("caption"), model.get("rows").length ? model.get("instruction") : ""].filter(Boolean).join("; ");

  function fill(columns, rows) {
    caption.textContent = described();
    caption.hidden = !caption.textContent;
    scroll.style.maxHeight = `${model.get("height")}px`;
    scroll.textContent = "";
    body = null;
    editing = null;
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
    table.setAttribute("aria-label", caption.textContent || "table");
    const head = table.createTHead().insertRow();
    head.setAttribute("role", "row"); // as a row that goes on in the next line is none by itself
    columns.forEach((column, index) => {
      const cell = document.createElement("th");
      cell.textContent = column.label;
      const terms = model.get("terms").split("\n").filter((line) => column.label.toLowerCase().includes(line.split(":")[0].toLowerCase()));
      cell.title = column.title ?? terms.join("\n");
      cell.tabIndex = 0;
      cell.dataset.column = index;
      cell.setAttribute("role", "columnheader");
      cell.dataset.lmSuppressShortcuts = "true";
      cell.className = column.align === "right" ? "iw-right" : "";
      if (column.width) cell.style.width = column.width;
      const mine = sorting?.column === index;
      cell.dataset.mark = mine ? (sorting.falling ? "▾" : "▴") : "";
      cell.setAttribute("aria-sort", mine ? (sorting.falling ? "descending" : "ascending") : "none");
      head.append(cell);
    });
    places = columns.map((column, index) => column.decimals ?? placesOf(rows.map((row) => row[index])));
    body = table.createTBody();
    for (const index of order) {
      const row = body.insertRow();
      row.dataset.index = index;
      row.setAttribute("role", "row");
      row.dataset.key = keyOf(index);
      row.dataset.lmSuppressShortcuts = "true"; // on the focused element itself, else Lab's command mode eats the arrows
      rows[index].forEach((value, i) => dress(row.insertCell(), columns[i], value));
    }
    scroll.append(table);
    mark(false);
    fit();
  }

  // What does not fit beside each other: texts go on in the next line; where that is not enough, so do the columns, or,
  // in a box too low for rows of several lines, the last columns are left out.
  function fit() {
    const table = body?.parentNode;
    if (!table || !scroll.clientWidth) return; // out of sight: it is measured when it comes into sight
    const wide = () => scroll.scrollWidth > scroll.clientWidth + 1;
    table.classList.remove("iw-tight", "iw-folded");
    for (const cell of table.querySelectorAll("[hidden]")) cell.hidden = false;
    caption.textContent = described();
    if (!wide()) return;
    table.classList.add("iw-tight");
    if (!wide()) return;
    if (parseFloat(getComputedStyle(scroll).maxHeight) < LOW) return leaveOut(table, wide);
    table.style.setProperty("--iw-tracks", tracks([...table.tHead.rows[0].cells]));
    table.classList.add("iw-folded");
  }

  function leaveOut(table, wide) {
    let out = 0;
    for (let at = table.tHead.rows[0].cells.length - 1; at > 0 && wide(); at--, out++) {
      for (const row of table.rows) row.cells[at].hidden = true;
    }
    caption.textContent = `${described()}; ${out} more column${out === 1 ? "" : "s"} where there is room`;
  }

  // Columns of a row that goes on in as few lines as it can, each as wide as the widest that is below each other there.
  function tracks(cells) {
    const widths = cells.map((cell) => cell.offsetWidth);
    for (let lines = 2; ; lines++) {
      const across = Math.ceil(widths.length / lines);
      const wide = Array.from({ length: across }, (_, at) => Math.max(...widths.filter((_, i) => i % across === at)));
      if (across === 1 || wide.reduce((sum, width) => sum + width) <= scroll.clientWidth) {
        return wide.map((width) => `minmax(0, ${width}fr)`).join(" ");
      }
    }
  }

  function dress(cell, column, value) {
    const text = column.edit && value === "" ? "–" : show(value, places[cell.cellIndex]);
    cell.textContent = text;
    cell.dir = "auto";
    cell.setAttribute("role", "gridcell");
    cell.className = [column.align === "right" && "iw-right", column.wrap && "iw-wrap"].filter(Boolean).join(" ");
    if (typeof value === "string" && value.length > 40 && !column.wrap) cell.title = value;
    else if (tiny(value) && places[cell.cellIndex]) cell.title = digits(value);
    else cell.removeAttribute("title");
    if (!column.edit || !writable()) return;
    cell.dataset.edit = column.label;
    cell.dataset.lmSuppressShortcuts = "true";
    cell.setAttribute("aria-label", `${column.label}: ${text}. Press Enter to change it.`);
    if (!cell.title) cell.title = "Double click, or Enter, to change it";
  }

  // ---- writing

  function edit(cell) {
    const index = Number(rowOf(cell).dataset.index);
    const place = model.get("columns").findIndex((one) => one.label === cell.dataset.edit);
    const column = model.get("columns")[place];
    const key = rowOf(cell).dataset.key;
    const was = model.get("rows")[index][place];
    const done = (value, move) => {
      if (building) return; // taken out of the page by a redraw, which opens it again
      editing = null;
      const stays = root.contains(document.activeElement);
      dress(cell, column, Array.isArray(value) ? value.join(", ") : value ?? was);
      if (value !== undefined && String(value) !== String(chosenAs(column, was))) {
        model.send({ kind: "edit", key, column: column.label, value });
      }
      if (stays || move) focusFrom(cell, move);
    };
    editing = { key, column: column.label, editor: openEditor(cell, column, was, done) };
  }

  const chosenAs = (column, value) => column.edit === "choices" ? chosenOf(value) : value ?? "";

  function focusFrom(cell, move) {
    const cells = [...scroll.querySelectorAll("td[data-edit]")];
    (cells[cells.indexOf(cell) + move] ?? cell).focus();
  }

  // ---- pointer and keys

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
    const row = rowOf(event.target), cell = cellOf(event.target);
    if (!row) return;
    const index = Number(row.dataset.index);
    if (cell && !editing && index === model.get("selected")) return edit(cell); // the second of two clicks
    pick(index);
  }, { signal });

  function cellKey(event, cell) {
    const row = rowOf(cell), column = cell.dataset.edit;
    const along = (other) => [...(other?.cells ?? [])].find((one) => one.dataset.edit === column);
    const cells = [...row.querySelectorAll("td[data-edit]")], at = cells.indexOf(cell);
    const steps = { ArrowDown: along(row.nextElementSibling), ArrowUp: along(row.previousElementSibling), ArrowRight: cells[at + 1], ArrowLeft: cells[at - 1] ?? row, Escape: row };
    if (event.key in steps) steps[event.key]?.focus();
    else if (event.key === "Enter" || event.key === "F2") edit(cell);
    else return false;
    return true;
  }

  function rowKey(event, row) {
    const steps = { ArrowDown: row.nextElementSibling, ArrowUp: row.previousElementSibling, Home: body.rows[0], End: body.rows[body.rows.length - 1] };
    if (event.key in steps) steps[event.key]?.focus();
    else if (event.key === "ArrowRight" && row.querySelector("td[data-edit]")) row.querySelector("td[data-edit]").focus();
    else if (event.key === "Enter" || event.key === " ") pick(Number(row.dataset.index));
    else if (event.key === "Escape") pick(-1);
    else return false;
    return true;
  }

  root.addEventListener("keydown", (event) => {
    const heading = event.target.closest("th");
    if (heading && (event.key === "Enter" || event.key === " ")) {
      event.preventDefault();
      event.stopPropagation();
      return sortBy(Number(heading.dataset.column));
    }
    const row = rowOf(event.target), cell = cellOf(event.target);
    if (!row || !(cell ? cellKey(event, cell) : rowKey(event, row))) return;
    event.preventDefault();
    event.stopPropagation();
  }, { signal });

  const remark = () => {
    picked = true; // rows that came with it are built in the next frame, and start where the reader had scrolled to
    requestAnimationFrame(() => requestAnimationFrame(() => { picked = false; }));
    mark(root.contains(document.activeElement) && document.activeElement.tagName === "TR");
    reveal();
  };
  const structure = "change:columns change:rows change:row_keys change:caption change:terms change:instruction change:empty change:height";
  const rebuild = perFrame(build); // columns, rows and names change together: built once
  const refused = (message) => { if (message?.kind === "refused") build(); };
  model.on(structure, rebuild);
  model.on("change:selected", remark);
  model.on("msg:custom", refused);
  build();
  requestAnimationFrame(reveal); // when it is on the page
  let width = -1;
  const watcher = new ResizeObserver(() => {
    if (root.clientWidth !== width) fit();
    width = root.clientWidth;
  });
  watcher.observe(root);
  return () => {
    watcher.disconnect();
    rebuild.stop();
    model.off(structure, rebuild);
    model.off("change:selected", remark);
    model.off("msg:custom", refused);
  };
}

export default { render };
