// A map of numbers on a canvas: labelled axes, colour bar, bars beside the rows, zoom, pan, a cell cursor.

const GAP = 8;
const STEPS = [1, 2, 5];
const NAME = 13;  // least distance in pixels of two names on the row axis
const SLANT = 18;  // and on the column axis, where they lean by 45°
const NAMED = 3;  // cells that the summary for screen readers names
const BARS = [['#2166ac', '#6aabd2'], ['#b2182b', '#ef8a62']];  // negative and positive, on a light and a dark page

// Round numbers from low to high, about `count` of them.
function ticks(low, high, count) {
  const raw = (high - low) / Math.max(1, count);
  if (!(raw > 0) || !Number.isFinite(raw)) return [];
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = power * (raw / power > 5 ? 10 : raw / power > 2 ? 5 : raw / power > 1 ? 2 : 1);
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) found.push(k * step);
  return found;
}

// Two significant digits, for the number in a cell.
const brief = value => (Math.abs(value) < 99.5 ? String(+value.toPrecision(2)) : value.toFixed(0)).replace('-', '−');

// The powers of ten up to high, for a logarithmic scale.
function decades(high) {
  const found = [];
  for (let power = 1; power <= high * (1 + 1e-9); power *= 10) found.push(power);
  return found;
}

// The smallest of 1, 2, 3, 4, 5, 10, 20, 50, 100, … not below `least`.
function roundStep(least) {
  if (least <= 5) return Math.max(1, Math.ceil(least));
  for (let power = 1; ; power *= 10) for (const step of STEPS) if (step * power >= least) return step * power;
}

function render({ model, el, signal }) {
  el.classList.add('iw-view');
  const head = element('div', 'iw-head', el);
  const title = element('div', 'iw-title', head), tools = element('div', 'iw-tools', head);
  const box = element('div', 'iw-heat', el);
  const canvas = element('canvas', '', box), top = element('canvas', 'iw-top', box);
  const empty = element('div', 'iw-empty', box);
  const slide = element('input', 'iw-slide', el);  // scrolls to the columns that do not fit
  Object.assign(slide, { type: 'range', min: 0, step: 1 });
  slide.dataset.lmSuppressShortcuts = 'true';
  const readout = element('div', 'iw-readout iw-below', el);
  const about = element('p', 'iw-sr', el);  // the map in words, for those who do not see it
  about.id = `iw-about-${Math.random().toString(36).slice(2)}`;
  const tip = makeTip(el);
  const opt = { signal };
  top.tabIndex = 0;
  top.dataset.lmSuppressShortcuts = 'true';  // on the focused node itself, else Notebook 7 takes the arrow keys
  top.setAttribute('role', 'application');
  top.setAttribute('aria-roledescription', 'heat map');
  top.setAttribute('aria-describedby', about.id);
  readout.setAttribute('aria-live', 'polite');

  const grid = document.createElement('canvas');
  let A = new Float32Array(0), R = 0, C = 0, hasGap = false, logarithmic = false, reverse = false, view = [0, 0, 0, 0];
  let free = true, start = 0, fitted = 0;  // whether the view is not zoomed; its first column and how many fit
  let theme = readTheme(el), table = new Uint8Array(1024), low = 0, scale = 255;
  let rowNames = [], columnNames = [], heads = [], headNames = [], muted = new Set(), rowWide = 0, columnWide = 0, bars = new Float32Array(0), barTop = 1, signedBars = false;
  let L = null, over = null, drag = null, dirty = new Set(['data', 'theme']);
  const widths = new Map();

  // ---- text
  const pen = canvas.getContext('2d'), ink = top.getContext('2d');
  const FONT = () => `12px ${theme.font}`;
  const wide = text => {
    let w = widths.get(text);
    if (w === undefined) { pen.font = FONT(); w = pen.measureText(text).width; widths.set(text, w); }
    return w;
  };
  const cut = (text, room) => {
    if (wide(text) <= room) return text;
    const chars = [...text];
    let a = 0, b = chars.length;
    while (a < b) { const mid = (a + b + 1) >> 1; if (wide(chars.slice(0, mid).join('') + '…') <= room) a = mid; else b = mid - 1; }
    return a ? chars.slice(0, a).join('') + '…' : '';
  };
  // The lines of a cell's text. Of "a → b" both sides must be told: on two lines if they do not fit on one, or both cut.
  const fit = (text, room, high) => {
    const [a, b] = text.split(' → '), told = (part, whole) => part === whole || part.length > 2;  // more than "·…"
    if (!b || wide(text) <= room) { const one = cut(text, room); return told(one, text) ? [one] : []; }
    if (high >= 26) {
      const two = [cut(a, room), cut(`→${b}`, room)];
      return told(two[0], a) && told(two[1].slice(1), b) ? two : [];
    }
    const rest = room - wide(' → '), half = rest / 2;
    const left = cut(a, Math.max(half, rest - wide(b))), right = cut(b, Math.max(half, rest - wide(a)));
    return told(left, a) && told(right, b) ? [`${left} → ${right}`] : [];
  };
  // A name on an axis: that of a special token, such as <|im_start|>, loses its brackets before it loses letters.
  const axisName = (name, room) => cut(wide(name) > room ? name.replace(/^<\|?([^<>|]+)\|?>$/, '$1') : name, room);
  const value = (r, c) => A[r * C + c];
  const describe = ([r, c]) => {
    const row = model.get('row_labels')[r], column = model.get('column_labels')[c], text = model.get('texts')[r * C + c], note = model.get('notes')[r * C + c];
    const name = (kind, held, i) => `${kind} ${held === undefined || held === String(i) ? i : `${isolate(`‘${label(held)}’`)} (${i})`}`.trim();
    const marked = inSpans(model.get('row_marks'), r) || inSpans(model.get('column_marks'), c) ? `, ${model.get('mark_name')}` : '';
    return `${name(model.get('row_name'), row, r)} → ${name(model.get('column_name'), column, c)}: ` +
      `${named(value(r, c), model.get('value_label'))}${text ? ` ${isolate(`‘${label(text)}’`)}` : ''}${marked}${note ? `\n${note}` : ''}`;
  };
  // The range of the numbers and the cells that stand out: those a reader of the colours would see first.
  function inWords() {
    const size = low < 0 ? Math.abs : reverse ? v => -v : v => v, first = [];
    const count = n => `${n} ${n === 1 ? 'cell' : 'cells'}`;
    let least = Infinity, most = -Infinity, missing = 0;
    for (let i = 0; i < A.length; i++) {
      const v = A[i];
      if (Number.isNaN(v)) { missing += 1; continue; }
      if (v < least) least = v;
      if (v > most) most = v;
      if (muted.has(i) || (first.length === NAMED && size(v) <= size(A[first[NAMED - 1]]))) continue;
      first.splice(first.findLastIndex(k => size(A[k]) >= size(v)) + 1, 0, i);
      if (first.length > NAMED) first.pop();
    }
    if (missing === A.length) return 'No cell has a number yet.';
    const cells = first.map(i => describe([Math.floor(i / C), i % C]).split('\n')[0]).join('; ');
    const kind = low < 0 ? 'Largest in size' : reverse ? 'Smallest' : 'Largest';
    return [
      `Numbers from ${digits(least)} to ${named(most, model.get('value_label'))}.`, cells && `${kind}: ${cells}.`,
      muted.size && `${count(muted.size)} without colour.`, missing && `${count(missing)} without a number.`,
    ].filter(Boolean).join(' ');
  }
  const cell = pair => pair.length === 2 && pair[0] >= 0 && pair[0] < R && pair[1] >= 0 && pair[1] < C ? pair : null;

  // The cursor may stand in a row or a column only; -1 is none.
  const cursor = () => {
    const [r = -1, c = -1] = model.get('cross');
    const at = [r >= 0 && r < R ? r : -1, c >= 0 && c < C ? c : -1];
    return at[0] >= 0 || at[1] >= 0 ? at : null;
  };

  // ---- what the traits say
  function readData() {
    const shape = model.get('shape'), before = [R, C];
    [R, C] = shape.length === 2 ? shape : [0, 0];
    A = floats(model.get('data'));
    if (A.length !== R * C) { A = new Float32Array(0); R = C = 0; }
    logarithmic = model.get('scale') === 'log';
    low = model.get('vmin'); scale = 255 / ((bend(model.get('vmax')) - bend(low)) || 1);
    if (R !== before[0] || C !== before[1]) readView();
    bars = floats(model.get('row_bars'));
    if (bars.length !== R) bars = new Float32Array(0);
    barTop = model.get('row_bars_max') || bars.reduce((most, v) => Math.abs(v) > most ? Math.abs(v) : most, 0) || 1;
    signedBars = model.get('row_bars_signed') || bars.some(v => v < 0);
    const rows = model.get('row_labels'), columns = model.get('column_labels');
    rowNames = Array.from({ length: R }, (_, r) => rows[r] === undefined ? String(r) : label(rows[r]));
    columnNames = Array.from({ length: C }, (_, c) => columns[c] === undefined ? String(c) : label(columns[c]));
    over = over && cell(over);
    paintGrid();
  }

  function readView() {
    const asked = model.get('window');
    free = !(asked.length === 4 && asked[0] >= 0 && asked[1] >= 0 && asked[2] <= R && asked[3] <= C && asked[2] > asked[0] && asked[3] > asked[1]);
    view = free ? [0, 0, R, C] : [...asked];
    start = fitted = 0;
  }

  // Of columns that do not all fit, those from `start` on, with the cursor among them.
  function place(follow) {
    if (!free || !L) return;
    const at = cursor()?.[1] ?? -1;
    if (follow && at >= 0 && (at < start || at >= start + L.fits)) start = at - Math.floor(L.fits / 2);
    start = Math.max(0, Math.min(C - L.fits, start));
    view = [0, start, R, start + L.fits];
  }

  function readColours() {
    theme = readTheme(el);
    const raw = readScale(model, theme);
    reverse = model.get('reverse');
    table = new Uint8Array(1024);
    for (let k = 0; k < 256; k++) {  // opaque, so that cells without a number can show through
      const from = 4 * (reverse ? 255 - k : k), f = raw[from + 3] / 255;
      for (let j = 0; j < 3; j++) table[4 * k + j] = Math.round(raw[from + j] * f + theme.bg[j] * (1 - f));
      table[4 * k + 3] = 255;
    }
    widths.clear();
    paintGrid();
  }

  const bend = v => logarithmic ? Math.log1p(Math.max(0, v)) : v;
  const level = v => Math.max(0, Math.min(255, Math.round((bend(v) - bend(low)) * scale)));
  const share = v => Math.max(0, Math.min(1, (bend(v) - bend(low)) * scale / 255));  // of the way from vmin to vmax
  const height = v => reverse ? 1 - share(v) : share(v);  // on the colour bar: with `reverse` the smallest is on top

  function colourInto(pixels, numbers) {
    const words = new Uint32Array(pixels.buffer), colours = new Uint32Array(table.buffer);
    let gaps = false;
    for (let i = 0; i < numbers.length; i++) {
      const v = numbers[i];
      if (v !== v) { words[i] = 0; gaps = true; } else words[i] = colours[level(v)];
    }
    return gaps;
  }

  function paintGrid() {
    if (!R || !C) return;
    grid.width = C; grid.height = R;
    const image = new ImageData(C, R);
    hasGap = colourInto(image.data, A);
    muted = new Set(model.get('muted').map(([r, c]) => r * C + c));
    for (const i of muted) if (i < R * C) image.data.set([...theme.bg, 255], 4 * i);
    grid.getContext('2d').putImageData(image, 0, 0);
  }

  // ---- where things stand
  function measure() {
    const W = box.clientWidth;
    if (!W || !R || !C) { L = null; return; }
    pen.font = FONT();
    rowWide = 0; columnWide = 0;
    for (const name of rowNames) rowWide = Math.max(rowWide, wide(name));
    for (const name of columnNames) columnWide = Math.max(columnWide, wide(name));
    const texts = model.get('texts').length > 0;
    heads = model.get('heads').map(head => head.split('\n').map(label));
    headNames = heads.length ? model.get('heads_name').split('\n') : [];
    // One very long name must not take the room of all: it is cut well beyond nine tenths of the names.
    const usual = rowNames.map(wide).sort((a, b) => a - b)[Math.floor(0.9 * (R - 1))];
    const rowRoom = Math.ceil(Math.max(Math.min(rowWide, Math.max(72, usual * 1.5), 150, W * 0.22), ...headNames.map(wide)));
    const above = heads.length ? 16 * headNames.length + 4 : 0, at = 6 + above;
    const yTitle = model.get('y_label') ? 20 : 0;
    const band = model.get('row_marks').length ? 8 : 0, columnBand = model.get('column_marks').length ? 8 : 0;
    const left = yTitle + rowRoom + 8 + band;
    const [vmin, vmax] = [model.get('vmin'), model.get('vmax')];
    const marks = scaleTicks(vmin, vmax, 160);
    const tickRoom = model.get('color_bar') ? Math.ceil(Math.max(...marks.map(m => wide(m.text)), 8)) : 0;
    const keyGap = W < 300 ? 6 : 16;  // a narrow map needs its width
    const keyRoom = model.get('color_bar') ? keyGap + 12 + 6 + tickRoom + (model.get('value_label') ? 18 : 0) : 8;
    const barRoom = bars.length ? GAP + Math.max(signedBars ? 80 : 48, Math.min(signedBars ? 128 : 96, Math.round(W * 0.09))) : 0;
    const most = Math.max(24, W - left - barRoom - keyRoom - 2);
    const least = model.get('column_width'), plotW = Math.min(most, C * Math.max(texts ? 110 : 52, least));
    const fits = Math.min(C, least ? Math.max(3, Math.floor(plotW / least)) : C);
    const flat = columnWide <= plotW / fits - 6;
    const columnRoom = flat ? 18 : Math.ceil(Math.min(columnWide, 110) * 0.7071 + 12);
    const below = bars.length ? (model.get('row_bars_label') ? 38 : 22) : 0;
    const bottom = Math.max(4 + columnBand + columnRoom + (model.get('x_label') ? 20 : 0), below);
    const fixed = model.get('height'), wanted = R * (R <= 12 ? 28 : R <= 30 ? 20 : 16);
    const tallest = Math.max(model.get('max_height'), R <= 60 ? R * NAME : 0);  // up to 60 rows, each has its name
    const room = parseFloat(getComputedStyle(el).getPropertyValue('--iw-room'));  // where the page has no more, rows are thin
    const plotH = fixed > 0 ? Math.max(40, fixed - bottom - at) : Math.max(48, Math.min(wanted, room ? room - bottom - at : tallest));
    L = { W, H: Math.ceil(at + plotH + bottom), x: left, y: at, w: plotW, h: plotH, yTitle, rowRoom, band, columnBand, columnRoom, barRoom, keyGap, tickRoom, columnsTop: at + plotH + columnBand, texts, numbers: model.get('numbers_from'), fits };
    box.style.height = `${L.H}px`;
    const ratio = window.devicePixelRatio || 1;
    for (const sheet of [canvas, top]) {
      const [w, h] = [Math.round(W * ratio), Math.round(L.H * ratio)];
      if (sheet.width !== w || sheet.height !== h) { sheet.width = w; sheet.height = h; }
    }
    L.ratio = ratio;
    top.dataset.frame = [L.x, L.y, L.w, L.h].map(v => v.toFixed(1)).join(' ');  // where the cells lie, for tests
  }

  const snap = v => Math.round(v * L.ratio) / L.ratio;
  const xOf = c => L.x + (c - view[1]) / (view[3] - view[1]) * L.w;
  const yOf = r => L.y + (r - view[0]) / (view[2] - view[0]) * L.h;
  const size = () => [L.w / (view[3] - view[1]), L.h / (view[2] - view[0])];
  const partial = () => view[2] - view[0] < R - 1e-6 || view[3] - view[1] < C - 1e-6;

  function scaleTicks(a, b, length) {
    const round = logarithmic ? decades(b) : ticks(a, b, Math.max(2, Math.floor(length / 34)));
    const all = [a];
    for (const v of round) if (Math.min(share(v) - share(all.at(-1)), share(b) - share(v)) * length > 18) all.push(v);
    all.push(b);
    return all.map(v => ({ v, text: digits(!logarithmic && Math.abs(v) < (b - a) * 1e-3 ? 0 : v) }));
  }

  // ---- drawing
  function draw() {
    title.textContent = model.get('title');
    title.title = model.get('terms');
    head.style.display = '';
    const bare = !R || !C;
    empty.style.display = bare ? '' : 'none';
    canvas.style.display = top.style.display = bare ? 'none' : '';
    tools.style.display = bare ? 'none' : '';
    top.setAttribute('aria-label', `${model.get('title') || 'heat map'}, ${R} rows, ${C} columns; arrow keys move, Enter pins, plus and minus zoom`);
    about.textContent = bare ? '' : inWords();
    if (bare) { slide.style.display = 'none'; empty.textContent = model.get('empty'); box.style.height = ''; readout.textContent = ''; tip.hide(); return; }
    measure();
    if (!L) return;
    place(L.fits !== fitted);
    fitted = L.fits;
    top.dataset.view = view.join(' ');
    pen.setTransform(L.ratio, 0, 0, L.ratio, 0, 0);
    pen.clearRect(0, 0, L.W, L.H);
    pen.textBaseline = 'middle';
    pen.direction = 'ltr';
    drawCells();
    drawRows();
    drawColumns();
    if (heads.length) drawHeads();
    drawSlide();
    if (bars.length) drawBars();
    if (model.get('color_bar')) drawKey();
    top.classList.toggle('iw-pan', partial());
    minus.disabled = !partial();
    reset.disabled = free;
    reset.title = L.fits < C ? 'As many columns as can be read (0)' : 'Whole map (0)';
    reset.setAttribute('aria-label', reset.title);
    plus.disabled = view[2] - view[0] <= 3 && view[3] - view[1] <= 3;
    drawTop();
  }

  function drawCells() {
    const [cw, ch] = size(), ratio = L.ratio;
    const [r0, c0] = [Math.floor(view[0]), Math.floor(view[1])], [r1, c1] = [Math.min(R, Math.ceil(view[2])), Math.min(C, Math.ceil(view[3]))];
    pen.save();
    pen.beginPath(); pen.rect(snap(L.x), snap(L.y), snap(L.w), snap(L.h)); pen.clip();
    if (hasGap) { pen.fillStyle = hatch(); pen.fillRect(L.x, L.y, L.w, L.h); }
    pen.imageSmoothingEnabled = false;
    if (cw * ratio >= 1 && ch * ratio >= 1) pen.drawImage(grid, c0, r0, c1 - c0, r1 - r0, xOf(c0), yOf(r0), (c1 - c0) * cw, (r1 - r0) * ch);
    else {
      const image = pooled(r0, c0, r1, c1, Math.min(c1 - c0, Math.floor((c1 - c0) * cw * ratio)), Math.min(r1 - r0, Math.floor((r1 - r0) * ch * ratio)));
      pen.drawImage(image, xOf(c0), yOf(r0), (c1 - c0) * cw, (r1 - r0) * ch);
    }
    const joined = model.get('joined'), found = joined ? runs(r0, c0, r1, c1, ch) : [];
    if (cw >= 18 && (ch >= 18 || joined)) {
      pen.fillStyle = joined ? theme.line : theme.background;  // a run must show where it ends, on white too
      const line = 1 / Math.min(ratio, 1.0001);
      for (let c = c0 + 1; c < c1; c++) pen.fillRect(snap(xOf(c)) - line / 2, L.y, line, L.h);
      for (const run of found) if (run.edge) pen.fillRect(xOf(run.c), snap(yOf(run.from)) - line / 2, cw, line);
      if (!joined) for (let r = r0 + 1; r < r1; r++) pen.fillRect(L.x, snap(yOf(r)) - line / 2, L.w, line);
    }
    if (joined && cw >= 20) drawJoined(found, cw, ch);
    else if ((L.texts || L.numbers !== null) && cw >= 20 && ch >= 12) drawTexts(r0, c0, r1, c1, cw, ch);
    if (cw >= 6 && ch >= 6) drawMarks(cw, ch);
    pen.restore();
    pen.strokeStyle = theme.line; pen.lineWidth = 1;
    pen.strokeRect(snap(L.x) - 0.5, snap(L.y) - 0.5, snap(L.w) + 1, snap(L.h) + 1);
  }

  // Cells below each other with one text: [from, to) rows of a column. One with the height of a line is `told`, and has
  // an `edge` above and below it.
  function runs(r0, c0, r1, c1, ch) {
    const texts = model.get('texts'), found = [];
    for (let c = c0; c < c1; c++) for (let from = r0, to, above = false; from < r1; from = to) {
      const i = from * C + c, text = texts[i] ?? '';
      for (to = from + 1; to < r1 && texts[to * C + c] === texts[i] && muted.has(to * C + c) === muted.has(i); to++);
      const told = text !== '' && (to - from) * ch >= 11.5;
      found.push({ c, from, to, text, told, edge: from > r0 && (told || above), muted: muted.has(i) });
      above = told;
    }
    return found;
  }

  // Pixels by which single lines stand under the middle of their cells: crosses in upper corners must not lie on them.
  const lower = ch => model.get('crossed').length && ch >= 26 ? 3 : 0;

  // A text once for a run of cells, where the run has the height of a line.
  function drawJoined(found, cw, ch) {
    pen.textAlign = 'center'; pen.font = FONT();
    for (const { c, from, to, text, told, muted: pale } of found) {
      if (!told) continue;
      const high = (to - from) * ch;
      const middle = (from + to - 1) >> 1, v = value(middle, c), k = 4 * level(v);
      pen.fillStyle = pale ? theme.muted : Number.isNaN(v) ? theme.fg : inkOn(table[k], table[k + 1], table[k + 2]);
      const lines = fit(label(text), cw - 6, high).map(isolate), y = (ch >= 12 && lines.length === 1 ? yOf(middle + 0.5) + lower(ch) : yOf((from + to) / 2)) + 0.5;
      lines.forEach((one, k) => pen.fillText(one, xOf(c + 0.5), y + (k - (lines.length - 1) / 2) * 12));
    }
  }

  function drawTexts(r0, c0, r1, c1, cw, ch) {
    const texts = model.get('texts'), numbers = numbersIn(r0, c0, r1, c1, cw);
    pen.textAlign = 'center'; pen.font = FONT();
    for (let r = r0; r < r1; r++) for (let c = c0; c < c1; c++) {
      const text = texts[r * C + c], v = value(r, c), k = 4 * level(v);
      const number = text ? '' : numbers.get(r * C + c) ?? '';
      if (!text && !number) continue;
      pen.fillStyle = muted.has(r * C + c) ? theme.muted : Number.isNaN(v) ? theme.fg : inkOn(table[k], table[k + 1], table[k + 2]);
      const lines = number ? [number] : fit(label(text), cw - 6, ch).map(isolate), y = yOf(r + 0.5) + 0.5 + (lines.length === 1 ? lower(ch) : 0);
      lines.forEach((one, k) => pen.fillText(one, xOf(c + 0.5), y + (k - (lines.length - 1) / 2) * 12));
    }
  }

  // Lines along upper edges and crosses in upper right corners, dark under light so that they show on every colour.
  function drawMarks(cw, ch) {
    const inside = ([r, c]) => r >= view[0] - 1 && r < view[2] && c >= view[1] - 1 && c < view[3];
    const edges = model.get('edges').filter(inside), crossed = model.get('crossed').filter(inside);
    const size = Math.max(2, Math.min(3.5, cw / 6, ch / 6)), away = size + 2.5;
    pen.lineCap = 'round';
    for (const [style, more] of [['rgba(0,0,0,0.8)', 2], ['#ffffff', 0]]) {
      pen.strokeStyle = style;
      for (const [r, c] of edges) {
        pen.lineWidth = 2 + more;
        pen.beginPath(); pen.moveTo(xOf(c) + 3, yOf(r) + 1); pen.lineTo(xOf(c + 1) - 3, yOf(r) + 1); pen.stroke();
      }
      for (const [r, c] of crossed) {
        const x = xOf(c + 1) - away, y = yOf(r) + away;
        pen.lineWidth = 1.6 + more;
        pen.beginPath();
        pen.moveTo(x - size, y - size); pen.lineTo(x + size, y + size); pen.moveTo(x - size, y + size); pen.lineTo(x + size, y - size);
        pen.stroke();
      }
    }
    pen.lineCap = 'butt';
  }

  // The numbers to write, by cell: all or none, for one that is cut off is another number.
  function numbersIn(r0, c0, r1, c1, cw) {
    const found = new Map();
    if (L.numbers === null) return found;
    const decimals = model.get('number_decimals') ?? null;
    for (let r = r0; r < r1; r++) for (let c = c0; c < c1; c++) {
      const v = value(r, c);
      if (!(Math.abs(v) >= L.numbers)) continue;
      const text = decimals === null ? brief(v) : v.toFixed(decimals).replace('-', '−');
      if (wide(text) > cw - 4) return new Map();
      found.set(r * C + c, text);
    }
    return found;
  }

  // Cells smaller than a pixel: each pixel shows its cell farthest from "nothing", so that no peak is lost; a muted cell has no colour.
  function pooled(r0, c0, r1, c1, w, h) {
    const vmin = model.get('vmin'), vmax = model.get('vmax'), rest = vmin < 0 && vmax > 0 ? 0 : reverse ? vmax : vmin;
    w = Math.max(1, w); h = Math.max(1, h);
    const most = new Float32Array(w * h).fill(NaN), plain = new Set(), toX = w / (c1 - c0), toY = h / (r1 - r0);
    for (let r = r0; r < r1; r++) {
      const line = Math.min(h - 1, Math.floor((r - r0) * toY)) * w;
      for (let c = c0; c < c1; c++) {
        const at = line + Math.min(w - 1, Math.floor((c - c0) * toX)), v = A[r * C + c], held = most[at];
        if (muted.has(r * C + c)) { plain.add(at); continue; }
        if (held !== held || Math.abs(v - rest) > Math.abs(held - rest)) most[at] = v;
      }
    }
    const sheet = document.createElement('canvas'), image = new ImageData(w, h);
    sheet.width = w; sheet.height = h;
    colourInto(image.data, most);
    for (const at of plain) if (most[at] !== most[at]) image.data.set([...theme.bg, 255], 4 * at);
    sheet.getContext('2d').putImageData(image, 0, 0);
    return sheet;
  }

  function hatch() {
    const sheet = document.createElement('canvas'), g = sheet.getContext('2d');
    sheet.width = sheet.height = 8;
    g.fillStyle = theme.line; g.globalAlpha = 0.35; g.fillRect(0, 0, 8, 8);
    g.globalAlpha = 1; g.strokeStyle = theme.muted; g.lineWidth = 1;
    g.beginPath();
    for (const k of [-8, 0, 8]) { g.moveTo(k, 8); g.lineTo(k + 8, 0); }
    g.stroke();
    return pen.createPattern(sheet, 'repeat');
  }

  // The rows and columns that have a name on the axis: as many as can be read.
  function namedRows() {
    const step = roundStep(Math.max((NAME - 0.5) / size()[1], (view[2] - view[0]) / 60)), rows = [];
    for (let r = Math.ceil(view[0] / step) * step; r < view[2]; r += step) {
      const y = yOf(r + 0.5);
      if (y >= L.y && y <= L.y + L.h && r < R) rows.push(r);
    }
    return { step, rows };
  }
  function namedColumns() {
    const step = flatLabels() ? 1 : roundStep(Math.max((SLANT - 0.5) / size()[0], (view[3] - view[1]) / 60)), columns = [];
    for (let c = Math.ceil(view[1] / step) * step; c < view[3]; c += step) {
      const x = xOf(c + 0.5);
      if (x >= L.x && x <= L.x + L.w && c < C) columns.push(c);
    }
    return { step, columns };
  }

  // The names, on the layer above: those that the name of [row, column] under the cursor would cover make room for it.
  function drawNames([row, column] = [-1, -1]) {
    const rowMarks = model.get('row_marks'), columnMarks = model.get('column_marks'), flat = flatLabels();
    const at = row >= 0 ? yOf(row + 0.5) : -Infinity, across = column >= 0 && !flat ? xOf(column + 0.5) : -Infinity;
    ink.font = FONT(); ink.textAlign = 'right'; ink.direction = 'ltr';
    for (const r of namedRows().rows) {
      const y = yOf(r + 0.5);
      if (Math.abs(y - at) < NAME - 0.5) continue;
      ink.fillStyle = inSpans(rowMarks, r) ? theme.mark : theme.fg;
      ink.fillText(isolate(axisName(rowNames[r], L.rowRoom)), L.x - 6 - L.band, y + 0.5);
    }
    ink.textAlign = flat ? 'center' : 'right';
    for (const c of namedColumns().columns) {
      const x = xOf(c + 0.5);
      if (Math.abs(x - across) < SLANT - 0.5) continue;
      ink.fillStyle = inSpans(columnMarks, c) ? theme.mark : theme.fg;
      if (flat) { ink.fillText(isolate(columnNames[c]), x, L.columnsTop + 12); continue; }
      ink.save();
      leaning(ink, x);
      ink.fillText(isolate(axisName(columnNames[c], leaningRoom(x))), 0, 0);
      ink.restore();
    }
  }

  function drawRows() {
    const spans = model.get('row_marks'), { step, rows } = namedRows();
    pen.fillStyle = theme.line;
    if (step > 1) for (const r of rows) pen.fillRect(L.x - 4, Math.round(yOf(r + 0.5)), 3, 1);
    pen.fillStyle = theme.mark;
    for (const [a, b] of spans) {
      const [y0, y1] = [Math.max(L.y, yOf(a)), Math.min(L.y + L.h, yOf(b))];
      if (y1 > y0) pen.fillRect(L.x - 8, snap(y0), 4, Math.max(1, snap(y1 - y0)));
    }
    sideTitle(model.get('y_label'), 8, L.h);
  }

  // Beside a map or its key of a height; a title that is longer begins at their lower end and may reach the top.
  function sideTitle(text, x, high) {
    const room = L.y + high;
    axisTitle(text, x, Math.min(L.y + high / 2, room - Math.min(wide(text), room) / 2), room, true);
  }

  function axisTitle(text, x, y, room, turned) {
    if (!text) return;
    pen.save();
    pen.translate(x, y);
    if (turned) pen.rotate(-Math.PI / 2);
    pen.fillStyle = theme.muted; pen.textAlign = 'center'; pen.font = FONT();
    pen.fillText(cut(text, Math.max(40, room)), 0, 0);
    pen.restore();
  }

  const flatLabels = () => columnWide <= size()[0] - 6;
  // Where a column's name ends that leans by 45°, and how long it may be.
  const leaning = (on, x) => { on.translate(x + 4, L.columnsTop + 8); on.rotate(-Math.PI / 4); };
  const leaningRoom = x => Math.min(110, (x - 2) / 0.7071);

  function drawColumns() {
    const spans = model.get('column_marks'), { step, columns } = namedColumns();
    pen.fillStyle = theme.line;
    if (step > 1) for (const c of columns) pen.fillRect(Math.round(xOf(c + 0.5)), L.columnsTop + 1, 1, 3);
    pen.fillStyle = theme.mark;
    for (const [a, b] of spans) {
      const [x0, x1] = [Math.max(L.x, xOf(a)), Math.min(L.x + L.w, xOf(b))];
      if (x1 > x0) pen.fillRect(snap(x0), L.y + L.h + 4, Math.max(1, snap(x1 - x0)), 4);
    }
    const title = model.get('x_label'), room = Math.max(L.w, 160), half = Math.min(wide(title), room) / 2;
    const middle = L.x + L.w / 2;  // under a narrow map it ends where the name of the bars begins
    axisTitle(title, bars.length ? Math.min(middle, L.x + L.w - half) : middle, L.H - 10, room, false);
  }

  // Lines of text above the columns, each with its name at the left.
  function drawHeads() {
    const [cw] = size(), y = line => L.y - 4 - 16 * (headNames.length - line) + 8;
    pen.font = FONT(); pen.textAlign = 'right'; pen.fillStyle = theme.muted;
    headNames.forEach((name, line) => pen.fillText(name, L.x - 6 - L.band, y(line)));
    if (cw < 20) return;
    pen.textAlign = 'center';
    for (let c = Math.ceil(view[1] - 0.5); c < view[3] - 0.5; c++) {
      (heads[c] ?? []).forEach((text, line) => {
        pen.fillStyle = line ? theme.muted : theme.fg;
        const [one] = fit(text, cw - 4, 12);
        if (one) pen.fillText(isolate(one), xOf(c + 0.5), y(line));
      });
    }
  }

  function drawSlide() {
    const seen = view[3] - view[1], needed = model.get('column_width') > 0 && seen < C - 1e-6;
    slide.style.display = needed ? '' : 'none';
    if (!needed) return;
    slide.style.marginLeft = `${L.x}px`; slide.style.width = `${L.w}px`;
    slide.max = Math.ceil(C - seen); slide.value = Math.round(view[1]);
    const words = `Columns ${Math.floor(view[1]) + 1} to ${Math.ceil(view[3])} of ${C}`;
    slide.title = words; slide.setAttribute('aria-label', words);
  }
  const slideTo = (c0, tell) => pan([view[0], c0, view[2], c0 + view[3] - view[1]], tell);

  // Bars beside the rows from 0 at the left; where some may be negative, to both sides of a 0 in the middle.
  function drawBars() {
    const x = L.x + L.w + GAP, room = L.barRoom - GAP, ratio = L.ratio, spans = model.get('row_marks');
    const lines = Math.max(1, Math.round(L.h * ratio)), [, ch] = size();
    const zero = signedBars ? snap(x + room / 2) : x, reach = (signedBars ? room / 2 : room) - 2;
    const colour = (v, marked) => marked ? theme.mark : !signedBars ? theme.select : BARS[v < 0 ? 0 : 1][theme.dark ? 1 : 0];
    const bar = (v, y, high, marked) => {
      const long = Math.min(1, Math.abs(v) / barTop) * reach;
      pen.fillStyle = colour(v, marked);
      pen.fillRect(v < 0 ? zero - long : zero, y, long, high);
    };
    const gap = ch >= 16 ? Math.round(ch * 0.16) : ch >= 6 ? 1 : 0;
    if (ch * ratio >= 1) {
      for (let r = Math.floor(view[0]); r < Math.min(R, Math.ceil(view[2])); r++) {
        const y0 = Math.max(L.y, snap(yOf(r)) + gap), y1 = Math.min(L.y + L.h, snap(yOf(r + 1)) - gap);
        if (bars[r] && y1 > y0) bar(bars[r], y0, y1 - y0, inSpans(spans, r));
      }
    } else {
      for (let p = 0; p < lines; p++) {
        const a = Math.floor(view[0] + p / lines * (view[2] - view[0])), b = Math.max(a + 1, Math.floor(view[0] + (p + 1) / lines * (view[2] - view[0])));
        let most = 0, marked = false;
        for (let r = a; r < b && r < R; r++) { if (Math.abs(bars[r]) > Math.abs(most)) most = bars[r]; marked ||= inSpans(spans, r); }
        if (most) bar(most, L.y + p / ratio, 1 / ratio, marked);
      }
    }
    pen.fillStyle = theme.line;
    pen.fillRect(snap(zero) - 1, L.y, 1, L.h);
    pen.fillStyle = theme.muted; pen.font = FONT();
    pen.textAlign = 'left'; pen.fillText(signedBars ? digits(-barTop) : '0', x, L.y + L.h + 12);
    pen.textAlign = 'right'; pen.fillText(digits(barTop), x + room, L.y + L.h + 12);
    const name = model.get('row_bars_label');
    if (name) { pen.textAlign = 'center'; pen.fillText(cut(name, room + 2 * GAP), x + room / 2, L.y + L.h + 28); }
  }

  const keyBox = () => ({ x: L.x + L.w + L.barRoom + L.keyGap, y: L.y, w: 12, h: Math.min(L.h, 240) });

  function drawKey() {
    const k = keyBox(), vmin = model.get('vmin'), vmax = model.get('vmax');
    const lines = Math.max(1, Math.round(k.h * L.ratio));
    for (let p = 0; p < lines; p++) {
      const up = 1 - (p + 0.5) / lines, i = 4 * Math.round(255 * (reverse ? 1 - up : up));
      pen.fillStyle = `rgb(${table[i]},${table[i + 1]},${table[i + 2]})`;
      pen.fillRect(k.x, k.y + p / L.ratio, k.w, 1 / L.ratio + 0.1);
    }
    pen.strokeStyle = theme.line; pen.strokeRect(k.x - 0.5, k.y - 0.5, k.w + 1, k.h + 1);
    pen.font = FONT(); pen.textAlign = 'left';
    for (const { v, text } of scaleTicks(vmin, vmax, k.h)) {
      const y = k.y + (1 - height(v)) * k.h;
      pen.fillStyle = theme.muted; pen.fillRect(k.x + k.w + 1, Math.min(k.y + k.h - 1, Math.round(y)), 3, 1);
      pen.fillText(text, k.x + k.w + 6, Math.max(k.y + 6, Math.min(k.y + k.h - 5, y)));
    }
    sideTitle(model.get('value_label'), k.x + k.w + 6 + L.tickRoom + 12, k.h);
  }

  // The layer above: cursor, pinned cell, hovered cell, their names on the axes.
  function drawTop() {
    if (!L) return;
    ink.setTransform(L.ratio, 0, 0, L.ratio, 0, 0);
    ink.clearRect(0, 0, L.W, L.H);
    ink.textBaseline = 'middle';
    const cross = cursor(), pinned = cell(model.get('pinned'));
    drawNames(over ?? cross ?? undefined);
    if (cross) drawCross(cross);
    if (pinned) frame(pinned, 3, theme.select);
    if (over) frame(over, 1.5, theme.fg);
    if (over ?? cross) chips(over ?? cross);
    if (over ?? cell(cross ?? [])) pointer(over ?? cross);
    readOut();
  }

  function spanOf([r, c]) {
    const [x0, x1] = [snap(xOf(c)), snap(xOf(c + 1))], [y0, y1] = [snap(yOf(r)), snap(yOf(r + 1))];
    return { x: x0, y: y0, w: Math.max(x1 - x0, 1), h: Math.max(y1 - y0, 1) };
  }

  function clipped(work) {
    ink.save();
    ink.beginPath(); ink.rect(L.x - 2, L.y - 2, L.w + 4, L.h + 4); ink.clip();
    work();
    ink.restore();
  }

  function drawCross(at) {
    const s = spanOf(at.map(v => Math.max(0, v)));
    clipped(() => {
      if (at[0] >= 0) cursorLines(s.y, s.h, y => line(L.x, y, L.x + L.w, y));
      if (at[1] >= 0) cursorLines(s.x, s.w, x => line(x, L.y, x, L.y + L.h));
    });
  }
  /** Lines along both edges of a row or column; a thin one has fine lines outside it, which do not hide its cells. */
  function cursorLines(start, size, draw) {
    const thin = size < 10, out = thin ? 0.5 : 0;
    const pens = thin ? [[theme.select, 1]] : [['rgba(0,0,0,0.65)', 3], ['rgba(255,255,255,0.95)', 1]];
    for (const [style, width] of pens) {
      ink.strokeStyle = style; ink.lineWidth = width;
      for (const edge of [start - out, start + size + out]) draw(edge);
    }
  }
  function line(x0, y0, x1, y1) { ink.beginPath(); ink.moveTo(x0, y0); ink.lineTo(x1, y1); ink.stroke(); }

  function frame(at, width, style) {
    const s = spanOf(at), grow = Math.max(0, 6 - Math.min(s.w, s.h)) / 2;
    clipped(() => {
      ink.strokeStyle = theme.background; ink.lineWidth = width + 2;
      ink.strokeRect(s.x - grow, s.y - grow, s.w + 2 * grow, s.h + 2 * grow);
      ink.strokeStyle = style; ink.lineWidth = width;
      ink.strokeRect(s.x - grow, s.y - grow, s.w + 2 * grow, s.h + 2 * grow);
    });
  }

  function chip(text, x, y, align, room) {
    text = axisName(text, room);
    const w = wide(text) + 8;
    let left = align === 'right' ? x - w : x - w / 2;
    left = Math.max(0, Math.min(L.W - w, left));
    ink.fillStyle = theme.select;
    ink.beginPath(); ink.roundRect(left, y - 9, w, 18, 3); ink.fill();
    ink.fillStyle = theme.dark ? '#111111' : '#ffffff'; ink.textAlign = 'left'; ink.font = FONT();
    ink.fillText(isolate(text), left + 4, y + 0.5);
  }
  function chips([r, c]) {
    const y = yOf(r + 0.5), x = xOf(c + 0.5);
    if (r >= 0 && y >= L.y && y <= L.y + L.h) chip(rowNames[r], L.x - 2 - L.band, y, 'right', Math.max(L.rowRoom, 24));
    if (c >= 0 && x >= L.x && x <= L.x + L.w) columnChip(columnNames[c], x);
  }
  // A name that leans is covered by a chip that leans, if it fits there whole.
  function columnChip(name, x) {
    if (flatLabels() || cut(name, leaningRoom(x)) !== name) return chip(name, x, L.columnsTop + 12, 'center', 220);
    ink.save();
    leaning(ink, x);
    ink.fillStyle = theme.select;
    ink.beginPath(); ink.roundRect(-wide(name) - 4, -9, wide(name) + 8, 18, 3); ink.fill();
    ink.fillStyle = theme.dark ? '#111111' : '#ffffff'; ink.textAlign = 'right'; ink.font = FONT();
    ink.fillText(isolate(name), 0, 0);
    ink.restore();
  }
  function pointer(at) {
    const v = value(...at);
    if (!model.get('color_bar') || Number.isNaN(v)) return;
    const k = keyBox(), y = k.y + (1 - height(v)) * k.h;
    ink.fillStyle = theme.fg;
    ink.beginPath(); ink.moveTo(k.x, y); ink.lineTo(k.x - 7, y - 4); ink.lineTo(k.x - 7, y + 4); ink.closePath(); ink.fill();
  }

  function readOut() {
    const at = over ?? cell(model.get('cross')) ?? cell(model.get('pinned'));
    const half = at ? null : cursor();
    const part = (kind, names, i) => `${kind} ${names[i] === String(i) ? i : `${isolate(`‘${names[i]}’`)} (${i})`}`;
    readout.style.minHeight = model.get('notes').length && L.W < 900 ? '40px' : '';  // room for two lines, so that nothing below jumps
    const text = at ? describe(at).replaceAll('\n', ' · ')
      : half ? (half[0] >= 0 ? part(model.get('row_name'), rowNames, half[0]) : part(model.get('column_name'), columnNames, half[1]))
      : `${R} × ${C} cells`;
    if (readout.textContent !== text) readout.textContent = text;
  }

  // ---- zoom and pan
  function setView(next, tell = true) {
    let [r0, c0, r1, c1] = next;
    const h = Math.min(R, Math.max(Math.min(R, 3), r1 - r0)), w = Math.min(C, Math.max(Math.min(C, 3), c1 - c0));
    r0 = Math.max(0, Math.min(R - h, r0)); c0 = Math.max(0, Math.min(C - w, c0));
    view = [r0, c0, r0 + h, c0 + w];
    free = !partial() && L?.fits === C;
    model.set('window', free ? [] : view);
    if (tell) model.save_changes();
    over = null; pointAt(null);
    refresh();
  }
  function home() {
    free = true; start = Math.round(view[1]);
    model.set('window', []); model.save_changes();
    over = null; pointAt(null);
    refresh();
  }
  // The same part elsewhere: without zoom only the first column changes.
  function pan(next, tell = true) {
    if (!free) return setView(next, tell);
    start = Math.round(next[1]);
    place(false);
    over = null; pointAt(null);
    refresh();
  }
  function zoom(factor, r, c, tell = true) {
    const [r0, c0, r1, c1] = view, h = (r1 - r0) / factor, w = (c1 - c0) / factor;
    const fr = (r - r0) / (r1 - r0), fc = (c - c0) / (c1 - c0);
    setView([r - fr * h, c - fc * w, r - fr * h + h, c - fc * w + w], tell);
  }
  const middle = () => {
    const at = cell(model.get('cross'));
    const seen = at && at[0] >= view[0] && at[0] < view[2] && at[1] >= view[1] && at[1] < view[3];
    return seen ? [at[0] + 0.5, at[1] + 0.5] : [(view[0] + view[2]) / 2, (view[1] + view[3]) / 2];
  };
  function keepInView([r, c]) {
    const [r0, c0, r1, c1] = view;
    const dr = r < r0 ? r - r0 : r + 1 > r1 ? r + 1 - r1 : 0, dc = c < c0 ? c - c0 : c + 1 > c1 ? c + 1 - c1 : 0;
    if (dr || dc) pan([r0 + dr, c0 + dc, r1 + dr, c1 + dc], false);
  }
  function tool(text, name, work) {
    const button = element('button', 'iw-tool', tools);
    button.type = 'button'; button.textContent = text; button.title = name; button.setAttribute('aria-label', name);
    button.addEventListener('click', work, opt);
    return button;
  }
  const minus = tool('−', 'Zoom out (−)', () => zoom(1 / 1.6, ...middle()));
  const plus = tool('+', 'Zoom in (+, or Ctrl and wheel); drag to move', () => zoom(1.6, ...middle()));
  const reset = tool('Reset', 'Whole map (0)', home);

  // ---- pointer
  const placeOf = event => {
    const b = top.getBoundingClientRect(), x = event.clientX - b.left, y = event.clientY - b.top;
    const c = view[1] + (x - L.x) / L.w * (view[3] - view[1]), r = view[0] + (y - L.y) / L.h * (view[2] - view[0]);
    return { r, c, inside: x >= L.x && x < L.x + L.w && y >= L.y && y < L.y + L.h };
  };
  const cellAt = event => {
    if (!L) return null;
    const { r, c, inside } = placeOf(event);
    return inside ? [Math.min(R - 1, Math.floor(r)), Math.min(C - 1, Math.floor(c))] : null;
  };
  const sendSoon = perFrame(() => model.save_changes());
  let labelled = false;
  function pointAt(at) {
    labelled = Boolean(at);
    if (!at) { tip.hide(); return; }
    const s = spanOf(at), b = top.getBoundingClientRect();
    tip.show(describe(at), { left: b.left + s.x, top: b.top + s.y, bottom: b.top + s.y + s.h, width: s.w });
  }
  function hover(at) {
    if (at?.[0] === over?.[0] && at?.[1] === over?.[1]) return;
    over = at;
    drawTop();
    pointAt(at);
    if (model.get('live_hover')) { model.set('hovered', at ?? []); sendSoon(); }
  }
  top.addEventListener('pointerdown', event => {
    if (event.button !== 0 || !L) return;
    drag = { x: event.clientX, y: event.clientY, view: [...view], moved: false, at: cellAt(event) };
  }, opt);
  top.addEventListener('pointermove', event => { if (!drag) hover(cellAt(event)); }, opt);
  top.addEventListener('pointerleave', () => { if (!drag) hover(null); }, opt);
  window.addEventListener('pointermove', event => {
    if (!drag || !L) return;
    if (!(event.buttons & 1)) { drag = null; return; }
    const dx = event.clientX - drag.x, dy = event.clientY - drag.y;
    if (!drag.moved && Math.hypot(dx, dy) < 4) return;
    drag.moved = true;
    if (!partial()) return;
    top.classList.add('iw-panning');
    const [r0, c0, r1, c1] = drag.view, right = dx / L.w * (c1 - c0), down = dy / L.h * (r1 - r0);
    pan([r0 - down, c0 - right, r1 - down, c1 - right], false);
  }, opt);
  window.addEventListener('pointerup', event => {
    if (!drag) return;
    const { moved, at } = drag;
    drag = null;
    top.classList.remove('iw-panning');
    if (moved) model.save_changes();
    else if (at) {
      const pinned = model.get('pinned'), again = pinned[0] === at[0] && pinned[1] === at[1];
      send(model, again ? { pinned: [], cross: [] } : { pinned: at, cross: at });
      drawTop();
    }
  }, opt);
  window.addEventListener('pointercancel', () => { drag = null; top.classList.remove('iw-panning'); }, opt);
  slide.addEventListener('input', () => slideTo(+slide.value), opt);
  let aside = 0;
  top.addEventListener('wheel', event => {
    if (!L) return;
    if (!(event.ctrlKey || event.metaKey)) {
      const by = event.shiftKey ? event.deltaX || event.deltaY : Math.abs(event.deltaX) > Math.abs(event.deltaY) ? event.deltaX : 0;
      if (!by || slide.style.display === 'none') return;
      event.preventDefault();
      aside += by / size()[0];
      const whole = Math.trunc(aside);
      aside -= whole;
      if (whole) { slideTo(view[1] + whole, false); if (!free) tellSoon(); }
      return;
    }
    event.preventDefault();
    const { r, c, inside } = placeOf(event);
    if (inside) { zoom(Math.exp(-Math.max(-60, Math.min(60, event.deltaY)) * 0.008), r, c, false); tellSoon(); }
  }, { signal, passive: false });
  let timer = 0;
  const tellSoon = () => { clearTimeout(timer); timer = setTimeout(() => model.save_changes(), 200); };

  // ---- keys
  top.addEventListener('keydown', event => {
    if (event.ctrlKey || event.metaKey || event.altKey || !L) return;
    const held = cursor(), at = held && held.map(v => Math.max(0, v)), moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1], PageUp: [-10, 0], PageDown: [10, 0] };
    let to = null;
    if (moves[event.key]) {
      const by = event.shiftKey ? 10 : 1, [dr, dc] = moves[event.key];
      to = at ? [at[0] + dr * by, at[1] + dc * by] : [Math.ceil(view[0]), Math.ceil(view[1])];
    } else if (event.key === 'Home') to = [at?.[0] ?? 0, 0];
    else if (event.key === 'End') to = [at?.[0] ?? 0, C - 1];
    else if (event.key === 'Enter' || event.key === ' ') {
      const pinned = model.get('pinned'), again = at && pinned[0] === at[0] && pinned[1] === at[1];
      if (at) send(model, { pinned: again ? [] : at });
    } else if (event.key === 'Escape') { hover(null); send(model, { cross: [], pinned: [] }); }
    else if (event.key === '+' || event.key === '=') zoom(1.6, ...middle());
    else if (event.key === '-') zoom(1 / 1.6, ...middle());
    else if (event.key === '0') home();
    else return;
    event.preventDefault();
    event.stopPropagation();
    if (to) {
      over = null; pointAt(null);
      to = [Math.max(0, Math.min(R - 1, to[0])), Math.max(0, Math.min(C - 1, to[1]))];
      keepInView(to);
      model.set('cross', to);
      sendSoon();
    }
    drawTop();
  }, opt);

  const refresh = perFrame(() => {
    const what = dirty;
    dirty = new Set();
    if (what.has('theme')) readColours();
    if (what.has('data')) readData();
    else if (what.has('colours')) paintGrid();
    draw();
    if (what.has('data') && labelled) pointAt(R && C ? over : null);  // the numbers under a pointer that rests
  });
  const mark = what => () => { if (what) dirty.add(what); refresh(); };
  let shown = 0;
  const watcher = new ResizeObserver(() => {  // first shown, shown again in a tab, another width
    if (box.clientWidth === shown) return;
    shown = box.clientWidth;
    if (theme.stale) dirty.add('theme');
    refresh();
  });
  watcher.observe(box);
  const stops = [
    onTraits(model, 'data shape vmin vmax scale muted row_labels column_labels row_bars row_bars_max row_bars_signed', mark('data')),
    onTraits(model, 'window', () => { const asked = model.get('window'); if (asked.length ? asked.some((v, i) => v !== view[i]) : !free) { readView(); refresh(); } }),
    onTraits(model, 'lut lut_dark reverse', mark('theme')),
    onTraits(model, 'title terms x_label y_label value_label row_name column_name mark_name texts notes numbers_from number_decimals edges crossed joined heads heads_name column_width row_marks column_marks row_bars_label height max_height color_bar empty', mark('')),
    onTraits(model, 'cross pinned', perFrame(() => {
      const before = start;
      place(true);
      if (start === before) drawTop(); else refresh();
    })),
    onTraits(model, 'hovered', () => { if (!model.get('live_hover')) { over = cell(model.get('hovered')); drawTop(); } }),
    watchTheme(mark('theme')),
  ];
  dirty = new Set();
  readColours(); readData(); draw();
  return () => { stops.forEach(stop => stop()); watcher.disconnect(); refresh.stop(); sendSoon.stop(); clearTimeout(timer); tip.hide(); };
}

export default { render };
