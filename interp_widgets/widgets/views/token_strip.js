// A strip of tokens: shaded by value, hovered, selected, brushed over and marked with the pointer or the keys.

const LINES = 24;
const ARC_ROOM = 22;  // above each line where there are arcs
const SVG = 'http://www.w3.org/2000/svg';
const PLAIN = /^[\x20-\x7e]*$/;
const CHUNK = 300;  // tokens painted per frame beyond those in view

// Adds or wipes out [start, end) in a list of spans: a drag that began inside a mark wipes, any other adds.
function editMarks(marks, start, end, wipe) {
  const kept = [];
  if (wipe) {
    for (const [a, b] of marks) {
      if (a < Math.min(b, start)) kept.push([a, Math.min(b, start)]);
      if (Math.max(a, end) < b) kept.push([Math.max(a, end), b]);
    }
    return kept;
  }
  for (const [a, b] of marks) {
    if (b < start || a > end) kept.push([a, b]);
    else { start = Math.min(start, a); end = Math.max(end, b); }
  }
  return [...kept, [start, end]].sort((one, other) => one[0] - other[0]);
}

function render({ model, el, signal }) {
  el.classList.add('iw-view');
  const head = element('div', 'iw-head', el);
  const title = element('div', 'iw-title', head), legend = element('div', 'iw-shades', head);
  const readout = element('div', 'iw-readout', head);
  readout.setAttribute('aria-live', 'polite');
  const strip = element('div', 'iw-strip', el);
  strip.setAttribute('role', 'listbox');
  strip.setAttribute('aria-orientation', 'horizontal');
  const tip = makeTip(el);
  const opt = { signal };

  let tokens = [], spans = [], painted = [], drawn = [], bars = [];
  let values = new Float32Array(0), heights = new Float32Array(0);
  let theme = readTheme(el), backs = [], inks = [];
  let barTop = 0, pending = [];
  let over = -1, cursor = 0, anchor = -1, drag = null, dirty = new Set();

  // ---- text of one token
  const valueText = i => {
    const label = model.get('labels')[i];
    const parts = [];
    if (label) parts.push(label);
    else if (i < values.length && !(Number.isNaN(values[i]) && i < heights.length)) {
      parts.push(named(values[i], model.get('value_label')));
    }
    if (i < heights.length) parts.push(`${model.get('density_label') || 'density'} ${digits(heights[i])}`);
    return parts.join(' · ');
  };
  const describe = i => {
    const value = valueText(i), mark = inSpans(model.get('marks'), i) ? `, ${model.get('mark_name')}` : '';
    return `${isolate(`‘${visible(tokens[i])}’`)} (${i})${value ? ': ' + value : ''}${mark}`;
  };

  // ---- drawing
  function build() {
    tokens = model.get('tokens');
    spans = []; painted = []; drawn = []; bars = []; pending = [];
    over = -1; anchor = -1; drag = null;
    cursor = Math.max(0, Math.min(cursor, tokens.length - 1));
    strip.textContent = '';
    strip.dir = direction(tokens);
    strip.classList.toggle('iw-many', tokens.length > 300);
    const special = model.get('special'), captions = model.get('captions'), all = document.createDocumentFragment();
    let word = null, size = 0;
    tokens.forEach((text, i) => {
      if (captions[i]) { element('span', 'iw-caption', all).textContent = captions[i]; word = null; }
      if (!word || special[i] || special[i - 1] || size > 24 || /^\s/.test(text) || /\s$/.test(tokens[i - 1])) {
        word = element('span', 'iw-word', all); size = 0;
      }
      size += text.length;
      if (text.length > 40) word.classList.add('iw-long');
      const node = element('span', 'iw-tok', word);
      node.dataset.i = i;
      node.setAttribute('role', 'option');
      node.tabIndex = -1;
      if (!PLAIN.test(text)) node.dir = 'auto';
      if (special[i]) node.classList.add('iw-special');
      fillToken(node, text);
      spans.push(node);
      if (text.includes('\n') && model.get('breaks')) { element('br', '', all); word = null; }
    });
    if (!tokens.length) element('div', 'iw-empty', all).textContent = model.get('empty');
    strip.append(all);
    strip.scrollTop = 0;
  }

  function readColours() {
    theme = readTheme(el);
    const table = readScale(model, theme);
    backs = []; inks = [];
    for (let k = 0; k < 256; k++) {
      const [r, g, b, a] = table.subarray(4 * k, 4 * k + 4), f = a / 255;
      const [x, y, z] = [r, g, b].map((v, j) => v * f + theme.bg[j] * (1 - f));
      backs.push(`rgba(${r},${g},${b},${f.toFixed(3)})`);
      inks.push(inkOn(x, y, z));
    }
    painted = [];
  }

  // Shades tokens first..last (last excluded) and draws their bars; touches only what has changed.
  function paintSome(first, last) {
    const low = model.get('vmin'), scale = 255 / ((model.get('vmax') - low) || 1);
    for (let i = first; i < last; i++) {
      const node = spans[i], v = values[i];
      const k = v === undefined || Number.isNaN(v) ? -1 : Math.max(0, Math.min(255, Math.round((v - low) * scale)));
      if (painted[i] !== k) {
        painted[i] = k;
        node.style.backgroundColor = k < 0 ? '' : backs[k];
        node.style.color = k < 0 ? '' : inks[k];
      }
      const tall = barTop ? Math.round(Math.max(0, Math.min(1, (heights[i] || 0) / barTop)) * 24) / 2 : -1;
      if (bars[i] === tall) continue;
      if (tall < 0) node.querySelector('.iw-bar')?.remove();
      else (node.querySelector('.iw-bar > i') ?? element('i', '', element('b', 'iw-bar', node))).style.height = `${tall}px`;
      bars[i] = tall;
    }
  }

  // An arc from each token to the one it names: above their line, or from the upper edge to the lower one of a line
  // further up. In a signed scale, numbers above 0 have another colour.
  function drawArcs() {
    const arcs = model.get('arcs').filter(([from, to]) => spans[from] && spans[to]);
    strip.querySelector('.iw-arcs')?.remove();
    if (!arcs.length) return;
    const picture = document.createElementNS(SVG, 'svg'), signed = model.get('vmin') < 0;
    picture.classList.add('iw-arcs');
    picture.setAttribute('width', 1);
    picture.setAttribute('height', 1);
    picture.setAttribute('aria-hidden', 'true');
    for (const [from, to, weight] of arcs) {
      const a = spans[from], b = spans[to], path = document.createElementNS(SVG, 'path');
      const x = a.offsetLeft + a.offsetWidth / 2, end = b.offsetLeft + b.offsetWidth / 2, top = a.offsetTop;
      const low = b.offsetTop + b.offsetHeight, middle = (top + low) / 2;
      const rise = top - Math.min(ARC_ROOM * 1.25, 12 + Math.abs(end - x) / 20);
      const aside = from === to ? 10 : 0;  // an arc to itself is a loop
      path.setAttribute('d', Math.abs(b.offsetTop - top) < 4
        ? `M${x - aside / 2},${top} C${x - aside},${rise} ${end + aside},${rise} ${end + aside / 2},${top}`
        : `M${x},${top} C${x},${middle} ${end},${middle} ${end},${low}`);
      path.setAttribute('stroke-width', (0.75 + 5 * Math.min(1, Math.abs(weight))).toFixed(2));
      path.classList.toggle('iw-up', signed && weight > 0);
      picture.append(path);
    }
    strip.append(picture);
  }

  // The tokens in view at once, the rest of a long text over the next frames.
  function paint() {
    values = floats(model.get('values'));
    heights = floats(model.get('density'));
    barTop = heights.length ? model.get('density_max') || heights.reduce((most, v) => v > most ? v : most, 0) || 1 : 0;
    strip.classList.toggle('iw-dense', barTop > 0 && spans.length > 0);
    strip.classList.toggle('iw-arched', model.get('arcs').length > 0 && spans.length > 0);
    fit();
    drawLegend();
    drawArcs();
    const [first, last] = inView();
    paintSome(first, last);
    pending = [[0, first], [last, spans.length]].filter(([a, b]) => b > a);
    if (pending.length) paintRest();
  }
  // The ends of the shades and what they count.
  function drawLegend() {
    const shown = model.get('legend') && values.some(v => !Number.isNaN(v));
    legend.hidden = !shown;
    legend.textContent = '';
    if (!shown) return;
    legend.title = model.get('value_label');
    element('span', '', legend).textContent = digits(model.get('vmin'));
    element('i', '', legend).style.background = `linear-gradient(to right, ${[0, 64, 128, 192, 255].map(k => backs[k]).join(', ')})`;
    element('span', '', legend).textContent = digits(model.get('vmax'));
  }
  const paintRest = perFrame(() => {
    let left = CHUNK;
    while (pending.length && left > 0) {
      const [a, b] = pending[0], end = Math.min(b, a + left);
      paintSome(a, end);
      left -= end - a;
      if (end === b) pending.shift(); else pending[0] = [end, b];
    }
    if (pending.length) paintRest();
  });

  // First and one past the last token within a page of what the strip shows.
  function inView() {
    if (spans.length <= CHUNK || !strip.clientHeight) return [0, Math.min(spans.length, CHUNK)];
    const find = y => {
      let a = 0, b = spans.length;
      while (a < b) { const m = (a + b) >> 1; if (spans[m].offsetTop < y) a = m + 1; else b = m; }
      return a;
    };
    return [find(strip.scrollTop - strip.clientHeight), find(strip.scrollTop + 2 * strip.clientHeight)];
  }

  function fit() {
    const dense = strip.classList.contains('iw-dense') ? 14 : 0, arched = strip.classList.contains('iw-arched') ? ARC_ROOM : 0;
    strip.style.maxHeight = `${model.get('max_lines') * (LINES + dense + arched) + 10}px`;
  }

  // One string of flags per token tells what has to be touched.
  function states() {
    const chosen = model.get('selected'), brush = model.get('brush');
    const marks = drag?.marks ?? model.get('marks');
    const flags = new Array(spans.length).fill('');
    for (const [a, b] of marks) for (let i = Math.max(0, a); i < Math.min(b, spans.length); i++) {
      flags[i] += i === a ? 'ms' : 'm';
      if (i === b - 1) flags[i] += 'e';
    }
    if (brush.length === 2) for (let i = Math.max(0, brush[0]); i < Math.min(brush[1], spans.length); i++) flags[i] += 'b';
    if (chosen >= 0 && chosen < spans.length) flags[chosen] += 'x';
    if (over >= 0 && over < spans.length) flags[over] += 'o';
    if (spans.length) flags[Math.min(cursor, spans.length - 1)] += 't';
    spans.forEach((node, i) => {
      const now = flags[i];
      if (now === (drawn[i] ?? '')) return;
      drawn[i] = now;
      const list = node.classList, has = c => now.includes(c);
      list.toggle('iw-mk', has('m')); list.toggle('iw-mk-start', has('s')); list.toggle('iw-mk-end', has('e'));
      list.toggle('iw-br', has('b')); list.toggle('iw-sel', has('x')); list.toggle('iw-over', has('o'));
      node.setAttribute('aria-selected', has('x') || has('b'));
      if (has('t')) {
        node.tabIndex = 0;
        node.dataset.lmSuppressShortcuts = 'true';  // on the focused node itself, else Notebook 7 takes the arrow keys
      } else node.tabIndex = -1;
    });
    for (const i of [cursor, over, chosen]) name(i);
    strip.classList.toggle('iw-marking', model.get('marking'));
    readOut();
  }

  // What a screen reader says: needed only for tokens that can be or are attended to.
  function name(i) {
    if (!spans[i]) return;
    const value = valueText(i), special = spans[i].classList.contains('iw-special') ? 'special token ' : '';
    const marked = inSpans(model.get('marks'), i) ? `, ${model.get('mark_name')}` : '';
    spans[i].ariaLabel = `${special}${tokens[i] === '' ? 'empty' : visible(tokens[i])}${value ? ', ' + value : ''}${marked}`;
  }

  function readOut() {
    const chosen = model.get('selected'), brush = model.get('brush');
    let text = '';
    if (over >= 0 && over < tokens.length) text = describe(over);
    else if (brush.length === 2 && brush[1] - brush[0] > 1) text = `tokens ${brush[0]} to ${brush[1] - 1} brushed`;
    else if (chosen >= 0 && chosen < tokens.length) text = describe(chosen);
    else if (tokens.length) text = `${tokens.length} token${tokens.length === 1 ? '' : 's'}`;
    if (readout.textContent !== text) readout.textContent = text;
  }

  function heading() {
    title.textContent = [model.get('label'), model.get('instruction')].filter(Boolean).join('; ');
    title.title = [title.textContent, model.get('terms')].filter(Boolean).join('\n');
    strip.setAttribute('aria-label', title.textContent || 'tokens');
    strip.setAttribute('aria-multiselectable', 'true');
  }

  // Scrolls only the strip, never the notebook.
  function reveal(i) {
    const node = spans[i];
    if (!node || strip.scrollHeight <= strip.clientHeight) return;
    const box = node.getBoundingClientRect(), frame = strip.getBoundingClientRect();
    if (box.top < frame.top + 2) strip.scrollTop += box.top - frame.top - 6;
    else if (box.bottom > frame.bottom - 2) strip.scrollTop += box.bottom - frame.bottom + 6;
  }

  const flush = perFrame(() => {
    const what = dirty;
    dirty = new Set();
    if (what.has('colours')) readColours();
    if (what.has('build')) build();
    if (what.has('build') || what.has('colours') || what.has('paint')) paint();
    states();
  });
  const mark = what => () => { dirty.add(what); flush(); };

  // ---- pointer
  const tokenAt = event => {
    const node = event.target.closest?.('.iw-tok');
    return node && strip.contains(node) ? +node.dataset.i : -1;
  };
  const tokenUnder = event => {
    const node = strip.getRootNode().elementFromPoint(event.clientX, event.clientY)?.closest?.('.iw-tok');
    return node && strip.contains(node) ? +node.dataset.i : -1;
  };
  const sendSoon = perFrame(() => model.save_changes());

  function hover(i) {
    if (i === over) return;
    over = i;
    states();
    if (i >= 0) tip.show(describe(i), spans[i].getBoundingClientRect()); else tip.hide();
    if (model.get('live_hover')) { model.set('hovered', i); sendSoon(); }
  }

  strip.addEventListener('pointerdown', event => {
    const i = tokenAt(event);
    if (event.button !== 0 || i < 0) return;
    const base = model.get('marks');
    drag = { from: i, to: i, moved: false, base, marks: null, wipe: inSpans(base, i), marking: model.get('marking') };
    cursor = i;
    anchor = i;
    states();
  }, opt);
  window.addEventListener('pointermove', event => {
    if (!drag) return;
    if (!(event.buttons & 1)) { endDrag(); return; }
    const i = tokenUnder(event);
    if (i < 0 || i === drag.to) return;
    drag.to = i;
    drag.moved = true;
    const start = Math.min(drag.from, i), end = Math.max(drag.from, i) + 1;
    if (drag.marking) drag.marks = editMarks(drag.base, start, end, drag.wipe);
    else {
      model.set('brush', [start, end]);
      if (model.get('live_hover')) sendSoon();
    }
    states();
  }, opt);
  function endDrag() {
    if (!drag) return;
    const { from, to, moved, marking, base, wipe } = drag;
    drag = null;
    if (marking) send(model, { marks: editMarks(base, Math.min(from, to), Math.max(from, to) + 1, wipe) });
    else if (moved) model.save_changes();
    else send(model, { selected: model.get('selected') === from ? -1 : from, brush: [] });
    states();
  }
  window.addEventListener('pointerup', endDrag, opt);
  window.addEventListener('pointercancel', () => { drag = null; states(); }, opt);
  strip.addEventListener('pointermove', event => { if (!drag) hover(tokenAt(event)); }, opt);
  strip.addEventListener('pointerleave', () => { if (!drag) hover(-1); }, opt);
  strip.addEventListener('scroll', () => tip.hide(), { signal, passive: true });
  strip.addEventListener('dragstart', event => event.preventDefault(), opt);

  // ---- keys
  strip.addEventListener('keydown', event => {
    if (event.ctrlKey || event.metaKey || event.altKey || !spans.length) return;
    const last = spans.length - 1, forward = strip.dir === 'rtl' ? 'ArrowLeft' : 'ArrowRight';
    const back = strip.dir === 'rtl' ? 'ArrowRight' : 'ArrowLeft';
    let to = null;
    if (event.key === forward) to = Math.min(last, cursor + 1);
    else if (event.key === back) to = Math.max(0, cursor - 1);
    else if (event.key === 'ArrowDown' || event.key === 'ArrowUp') to = onLine(event.key === 'ArrowDown' ? 1 : -1);
    else if (event.key === 'Home') to = 0;
    else if (event.key === 'End') to = last;
    else if (event.key === 'Enter' || event.key === ' ') {
      const brush = model.get('brush');
      if (model.get('marking')) {
        const [start, end] = brush.length === 2 ? brush : [cursor, cursor + 1];
        send(model, { marks: editMarks(model.get('marks'), start, end, inSpans(model.get('marks'), start)), brush: [] });
        anchor = -1;
      } else send(model, { selected: model.get('selected') === cursor ? -1 : cursor });
    } else if (event.key === 'Escape') {
      anchor = -1;
      hover(-1);
      send(model, { selected: -1, brush: [] });
    } else return;
    event.preventDefault();
    event.stopPropagation();
    if (to !== null) {
      if (event.shiftKey) {
        if (anchor < 0) anchor = cursor;
        send(model, { brush: [Math.min(anchor, to), Math.max(anchor, to) + 1] });
      } else {
        anchor = -1;
        if (model.get('brush').length) send(model, { brush: [] });
      }
      cursor = to;
      reveal(to);
      states();
      spans[to].focus({ preventScroll: true });
      hover(to);
    }
    states();
  }, opt);
  // The token above or below, nearest in the horizontal.
  function onLine(step) {
    const here = spans[cursor].getBoundingClientRect(), x = here.left + here.width / 2;
    let best = cursor, line = null, gap = Infinity;
    for (let i = cursor + step; i >= 0 && i < spans.length; i += step) {
      const box = spans[i].getBoundingClientRect();
      if (Math.abs(box.top - here.top) < 4) continue;
      line ??= box.top;
      if (Math.abs(box.top - line) > 4) break;
      const away = Math.abs(box.left + box.width / 2 - x);
      if (away < gap) { gap = away; best = i; }
    }
    return best;
  }
  strip.addEventListener('focusin', event => { const i = tokenAt(event); if (i >= 0 && !drag) { cursor = i; states(); } }, opt);
  strip.addEventListener('focusout', () => { if (!strip.matches(':hover')) hover(-1); }, opt);

  const stops = [
    onTraits(model, 'tokens special captions empty', mark('build')),
    onTraits(model, 'values vmin vmax labels value_label legend', mark('paint')),
    onTraits(model, 'lut lut_dark', mark('colours')),
    onTraits(model, 'density density_max density_label arcs', mark('paint')),
    onTraits(model, 'max_lines', fit),
    onTraits(model, 'label instruction terms', heading),
    onTraits(model, 'marks', mark('states')),
    onTraits(model, 'brush marking', mark('states')),
    onTraits(model, 'selected', () => { cursor = Math.max(0, model.get('selected') < 0 ? cursor : model.get('selected')); reveal(cursor); flush(); }),
    onTraits(model, 'hovered', () => { over = model.get('hovered'); flush(); }),
    watchTheme(() => { dirty.add('colours'); flush(); }),
  ];
  const watcher = new ResizeObserver(() => { if (theme.stale) mark('colours')(); else drawArcs(); });
  watcher.observe(strip);
  heading(); readColours(); build(); paint(); states();
  return () => { stops.forEach(stop => stop()); watcher.disconnect(); flush.stop(); paintRest.stop(); sendSoon.stop(); tip.hide(); };
}

export default { render };
