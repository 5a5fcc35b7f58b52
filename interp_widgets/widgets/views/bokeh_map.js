// A map of points with names: one length is as many pixels across as up, names stand where there is room.
// What a picture of the map shows is decided alike in figures/concepts/names.py.

const EQUAL_ASPECT = 'equal aspect';  // tag of a figure
const NAMES = 'names where there is room';  // tag of the renderer of the rings, which is drawn last
const MOST_NAMES = 60, MOST_TRIED = 1500, NAME_HEIGHT = 14, CELL = 32;

// Widens one range so that both have one scale. The ranges that somebody asked for are kept and fitted anew when the
// frame changes, so that a map does not shrink each time a window is resized. Two copies of a figure share their ranges:
// what another copy has widened for its own frame stays, or they would widen for each other for ever.
function keepAspect(plot) {
  let asked = null, fitted = null, size = '', touched = -Infinity;
  for (const kind of ['pointerdown', 'pointerup', 'wheel', 'keydown']) plot.el.addEventListener(kind, () => { touched = performance.now(); }, { capture: true, passive: true });
  const another = now => fitted && performance.now() - touched > 1000 && now[0] <= fitted[0] && now[1] >= fitted[1] && now[2] <= fitted[2]
    && now[3] >= fitted[3] && [0, 2].every(k => Math.abs(now[k] + now[k + 1] - fitted[k] - fitted[k + 1]) < 1e-6 * (now[k + 1] - now[k]));
  plot.connect(plot.repainted, () => {
    const { x_range: across, y_range: up } = plot.model, { width, height } = plot.frame.bbox;
    const now = [across.start, across.end, up.start, up.end];
    if (!(width > 20 && height > 20) || now.some(value => !Number.isFinite(value))) return;
    const resized = size !== `${width} ${height}`, moved = !fitted || now.some((value, k) => value !== fitted[k]);
    if (!moved && !resized) return;
    size = `${width} ${height}`;
    if (moved && !resized && another(now)) { fitted = now; return; }
    if (moved) asked = now;
    const [left, right, low, high] = asked, unit = Math.max((right - left) / width, (high - low) / height);
    const wide = unit * width / 2, tall = unit * height / 2, x = (left + right) / 2, y = (low + high) / 2;
    fitted = [x - wide, x + wide, y - tall, y + tall];
    if (fitted.every((value, k) => Math.abs(value - now[k]) < 0.002 * unit * Math.max(width, height))) { fitted = now; return; }
    across.setv({ start: fitted[0], end: fitted[1] });
    up.setv({ start: fitted[2], end: fitted[3] });
  });
}

// Which names have room, the first first: none covers a point or another name, but that of the chosen point may cover points.
function placeNames({ at, candidates, inFrame, width, height, radius, widthOf }) {
  const cells = new Map(), boxes = [], placed = [];
  const columns = Math.ceil(width / CELL) + 2, cellOf = (x, y) => (Math.floor(y / CELL) + 1) * columns + Math.floor(x / CELL) + 1;
  for (const i of inFrame) {
    const [x, y] = at(i), cell = cellOf(x, y);
    if (cells.has(cell)) cells.get(cell).push(i); else cells.set(cell, [i]);
  }
  const covers = ([left, top, right, bottom]) => {
    for (let y = top - radius; y < bottom + radius + CELL; y += CELL) for (let x = left - radius; x < right + radius + CELL; x += CELL) {
      for (const i of cells.get(cellOf(Math.min(x, right + radius), Math.min(y, bottom + radius))) ?? []) {
        const [px, py] = at(i);
        if (px > left - radius && px < right + radius && py > top - radius && py < bottom + radius) return true;
      }
    }
    return false;
  };
  let tried = 0;
  for (const candidate of candidates) {
    if (placed.length === MOST_NAMES || tried++ === MOST_TRIED) break;
    const { x, y, text } = candidate;
    if (!text || !(x >= 0 && x <= width && y >= 0 && y <= height)) continue;
    const wide = widthOf(candidate), gap = (candidate.radius ?? radius) + 3, lines = NAME_HEIGHT / 2 + gap - 1;
    let free = null, inside = null;
    for (const [left, middle] of [[x + gap, y], [x - gap - wide, y], [x - wide / 2, y - lines], [x - wide / 2, y + lines]]) {
      const box = [left, middle - NAME_HEIGHT / 2, left + wide, middle + NAME_HEIGHT / 2];
      if (box[0] < 0 || box[1] < 0 || box[2] > width || box[3] > height) continue;
      if (boxes.some(b => box[0] < b[2] && b[0] < box[2] && box[1] < b[3] && b[1] < box[3]) ) continue;
      if (covers(box)) { inside ??= { box, left, middle }; continue; }
      free = { box, left, middle };
      break;
    }
    const chosen = free ?? (candidate.always ? inside : null);
    if (!chosen) continue;
    boxes.push(chosen.box);
    placed.push({ ...candidate, left: chosen.left, middle: chosen.middle });
  }
  return placed;
}

// Draws the names of a map's points above its rings: first those that are ringed.
function drawNames(view) {
  const own = view._paint, plot = view.plot_view, widths = new Map();
  let points = null, style = null, order = null, ranks = null;
  view._paint = ctx => {
    own.call(view, ctx);
    const dots = points ??= [...viewsBelow([plot])].find(one => one.model.name === 'points'), data = dots?.model.data_source.data;
    if (!data?.name?.length) return;
    if (ranks !== data.rank) {
      ranks = data.rank;
      order = Array.from(ranks, (_, i) => i).sort((a, b) => ranks[a] - ranks[b]);
    }
    if (!style || !(plot.model.document?.interactive_duration() >= 0)) {
      const page = getComputedStyle(plot.el);
      style = { color: page.getPropertyValue('--iw-fg') || '#333', ground: page.getPropertyValue('--iw-bg') || '#fff', font: page.getPropertyValue('--iw-font') || 'sans-serif' };
    }
    const { left: x0, top: y0, width, height } = plot.frame.bbox, { xscale, yscale } = dots;
    const X = data.x, Y = data.y, at = i => [xscale.compute(X[i]) - x0, yscale.compute(Y[i]) - y0];
    const inFrame = [];
    for (let i = 0; i < X.length; i++) {
      const [x, y] = at(i);
      if (x >= 0 && y >= 0 && x <= width && y <= height) inFrame.push(i);
    }
    const fonts = { bold: `bold 12px ${style.font}`, plain: `11px ${style.font}` };
    const ring = view.model.data_source.data, ringed = new Set(ring.name ?? []), selected = dots.model.data_source.selected.indices;
    const shown = selected.length ? new Set(selected) : null, seen = new Set(inFrame);
    function* candidates() {
      for (let k = (ring.x?.length ?? 0) - 1; k >= 0; k--) {
        yield { x: xscale.compute(ring.x[k]) - x0, y: yscale.compute(ring.y[k]) - y0, text: ring.name[k], color: ring.color[k], font: fonts.bold, radius: ring.size[k] / 2, always: ring.chosen[k] };
      }
      for (const i of order) {
        if (!seen.has(i) || ringed.has(data.name[i]) || (shown && !shown.has(i))) continue;
        const [x, y] = at(i);
        yield { x, y, text: data.name[i], color: style.color, font: fonts.plain };
      }
    }
    const widthOf = ({ text, font }) => {
      const key = font + text;
      if (!widths.has(key)) { ctx.font = font; widths.set(key, ctx.measureText(text).width); }
      return widths.get(key);
    };
    ctx.save();
    const placed = placeNames({ at, candidates: candidates(), inFrame, width, height, radius: dots.glyph.size.get(0) / 2, widthOf });
    ctx.textBaseline = 'middle';
    ctx.textAlign = 'left';
    ctx.lineJoin = 'round';
    ctx.lineWidth = 3;
    ctx.strokeStyle = style.ground;
    for (const { text, color, font, left, middle } of placed) {
      ctx.font = font;
      ctx.fillStyle = color;
      ctx.strokeText(text, x0 + left, y0 + middle);
      ctx.fillText(text, x0 + left, y0 + middle);
    }
    ctx.restore();
    plot.named = placed.map(({ text }) => text);  // for tests and readers of the page
  };
}
