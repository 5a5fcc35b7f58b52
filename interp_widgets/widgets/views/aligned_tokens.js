// Two texts, token under token: columns are selected, and tokens paired by a drag or by clicks.

const LINE = 56;  // height of a double line with the gap below it

// The pairs with [upper, lower] among them: those with one of both tokens, and those across it, are undone.
function paired(pairs, upper, lower) {
  const kept = pairs.filter(([a, b]) => (a - upper) * (b - lower) > 0);
  return [...kept, [upper, lower]].sort((one, other) => one[0] - other[0]);
}

function render({ model, el, signal }) {
  el.classList.add('iw-view');
  const head = element('div', 'iw-head', el);
  const title = element('div', 'iw-title', head), readout = element('div', 'iw-readout', head);
  readout.setAttribute('aria-live', 'polite');
  const area = element('div', 'iw-strip iw-aligned', el);
  area.setAttribute('role', 'grid');
  const opt = { signal };

  let rows = [[], []], columns = [];  // the nodes of both texts, and [upper, lower] token of each column
  let held = null, drag = null, cursor = [0, 0], message = '';

  const texts = side => model.get(side ? 'lower' : 'upper');
  const partner = (side, i) => (columns.find(column => column[side] === i) ?? [-1, -1])[1 - side];
  const differs = ([a, b]) => model.get('pairs').length > 0 && (a < 0 || b < 0 || texts(0)[a] !== texts(1)[b]);
  const quoted = (side, i) => isolate(`‘${visible(texts(side)[i])}’`) + ` (${i})`;

  function build() {
    columns = model.get('columns');
    rows = [texts(0).map(() => null), texts(1).map(() => null)];
    held = drag = null;
    area.textContent = '';
    area.dir = direction([...texts(0), ...texts(1)]);
    if (!columns.length) element('div', 'iw-empty', area).textContent = model.get('empty');
    else if (model.get('names').some(Boolean)) {
      const names = element('div', 'iw-column-of', area);
      for (const name of model.get('names')) element('span', 'iw-name', names).textContent = name;
    }
    for (const column of columns) {
      const box = element('div', 'iw-column-of', area);
      for (const side of [0, 1]) {
        const i = column[side], text = texts(side)[i];
        if (i < 0 || text === undefined) { element('span', 'iw-gap', box).textContent = model.get('pairs').length ? '–' : ''; continue; }
        const node = element('span', 'iw-tok', box);
        Object.assign(node.dataset, { side, i });
        node.setAttribute('role', 'gridcell');
        node.dir = 'auto';
        node.classList.toggle('iw-differs', differs(column));
        node.title = text.length > 24 ? visible(text) : '';
        fillToken(node, text);
        const other = column[1 - side];
        const state = other < 0 ? 'aligned with none' : differs(column) ? `aligned with ${visible(texts(1 - side)[other])}` : '';
        node.ariaLabel = [model.get('names')[side], visible(text), state].filter(Boolean).join(', ');
        rows[side][i] = node;
      }
    }
    states();
  }

  function states() {
    const chosen = model.get('selected'), lower = partner(0, chosen);
    area.classList.toggle('iw-writable', model.get('writable'));
    area.classList.toggle('iw-pairing', model.get('pairing') && model.get('writable'));
    area.classList.toggle('iw-dragging', !!drag?.moved);
    area.style.maxHeight = `${model.get('max_lines') * LINE + 10}px`;
    if (!rows[cursor[0]][cursor[1]]) cursor = [0, 0];
    rows.forEach((nodes, side) => nodes.forEach((node, i) => {
      if (!node) return;
      const is = at => at !== null && at[0] === side && at[1] === i;
      const selected = chosen >= 0 && i === (side ? lower : chosen);
      node.classList.toggle('iw-sel', selected);
      node.classList.toggle('iw-held', is(held) || (!!drag?.moved && is(drag.from)));
      node.classList.toggle('iw-target', !!drag?.moved && is(drag.to));
      node.setAttribute('aria-selected', selected || is(held));
      node.tabIndex = is(cursor) ? 0 : -1;
      if (is(cursor)) node.dataset.lmSuppressShortcuts = 'true'; else delete node.dataset.lmSuppressShortcuts;
    }));
    readOut();
  }

  function readOut() {
    let text = message;
    if (drag?.moved) text = drag.to ? `${quoted(...drag.from)} under ${quoted(...drag.to)}` : 'drop it on a token of the other text';
    else if (!text && held) text = `${quoted(...held)}: click its partner in the other text`;
    if (readout.textContent !== text) readout.textContent = text;
  }

  // Pairs a token with one of the other text; two that are paired already are parted if `parts`.
  function pair(one, other, parts) {
    const [upper, lower] = one[0] ? [other[1], one[1]] : [one[1], other[1]];
    const pairs = model.get('pairs');
    const already = pairs.some(([a, b]) => a === upper && b === lower);
    held = null;
    if (already && !parts) return;
    if (already && pairs.length === 1) { message = 'one pair must stay'; return; }
    send(model, { pairs: already ? pairs.filter(([a]) => a !== upper) : paired(pairs, upper, lower) });
  }

  function click(at) {
    message = '';
    if (model.get('pairing') && model.get('writable')) {
      if (!held || held[0] === at[0]) held = held && held[1] === at[1] ? null : at;
      else pair(held, at, true);
    } else {
      const upper = at[0] ? partner(1, at[1]) : at[1];
      send(model, { selected: upper === model.get('selected') ? -1 : upper });
    }
    states();
  }

  // ---- pointer
  const tokenAt = event => {
    const node = area.getRootNode().elementFromPoint(event.clientX, event.clientY)?.closest?.('.iw-tok');
    return node && area.contains(node) ? [+node.dataset.side, +node.dataset.i] : null;
  };
  // What a dragged token would be paired with: the token of the other text in the column under the pointer.
  const dropAt = event => {
    const node = area.getRootNode().elementFromPoint(event.clientX, event.clientY)?.closest?.('.iw-column-of');
    const found = node && area.contains(node) && node.querySelector(`.iw-tok[data-side="${1 - drag.from[0]}"]`);
    return found ? [+found.dataset.side, +found.dataset.i] : null;
  };
  area.addEventListener('pointerdown', event => {
    const from = tokenAt(event);
    if (event.button !== 0 || !from) return;
    message = '';
    cursor = from;
    drag = { from, to: null, moved: false };
    states();
  }, opt);
  window.addEventListener('pointermove', event => {
    if (!drag) return;
    if (!(event.buttons & 1)) { drag = null; states(); return; }
    const over = tokenAt(event), away = !over || over[0] !== drag.from[0] || over[1] !== drag.from[1];
    if (!model.get('writable') || (!drag.moved && !away)) return;
    drag.moved = true;
    drag.to = dropAt(event);
    states();
  }, opt);
  window.addEventListener('pointerup', () => {
    if (!drag) return;
    const { from, to, moved } = drag;
    drag = null;
    if (!moved) click(from);
    else if (to) pair(from, to, false);
    states();
  }, opt);
  window.addEventListener('pointercancel', () => { drag = null; states(); }, opt);
  area.addEventListener('dragstart', event => event.preventDefault(), opt);

  // ---- keys
  area.addEventListener('keydown', event => {
    if (event.ctrlKey || event.metaKey || event.altKey || !columns.length) return;
    const [side, i] = cursor, last = rows[side].length - 1, forward = area.dir === 'rtl' ? -1 : 1;
    let to = null;
    if (event.key === 'ArrowRight') to = [side, Math.max(0, Math.min(last, i + forward))];
    else if (event.key === 'ArrowLeft') to = [side, Math.max(0, Math.min(last, i - forward))];
    else if (event.key === 'ArrowUp' || event.key === 'ArrowDown') to = across(side, i, event.key === 'ArrowDown' ? 1 : 0);
    else if (event.key === 'Home') to = [side, 0];
    else if (event.key === 'End') to = [side, last];
    else if (event.key === 'Enter' || event.key === ' ') click(cursor);
    else if (event.key === 'Escape') { held = null; message = ''; send(model, { selected: -1 }); }
    else return;
    event.preventDefault();
    event.stopPropagation();
    if (to && rows[to[0]][to[1]]) cursor = to;
    states();
    rows[cursor[0]][cursor[1]]?.focus({ preventScroll: true });
    rows[cursor[0]][cursor[1]]?.scrollIntoView({ block: 'nearest', inline: 'nearest' });
  }, opt);
  area.addEventListener('focusin', event => {
    const node = event.target.closest('.iw-tok');
    if (node && !drag) { cursor = [+node.dataset.side, +node.dataset.i]; states(); }
  }, opt);
  // The token of the other text in the nearest column that has one.
  function across(side, i, to) {
    if (side === to) return null;
    const at = columns.findIndex(column => column[side] === i);
    for (let step = 0; step < columns.length; step++) {
      for (const near of [at - step, at + step]) if (columns[near]?.[to] >= 0) return [to, columns[near][to]];
    }
    return null;
  }

  function heading() {
    title.textContent = [model.get('label'), model.get('instruction')].filter(Boolean).join('; ');
    title.title = [title.textContent, model.get('terms')].filter(Boolean).join('\n');
    area.setAttribute('aria-label', title.textContent || 'tokens of two texts');
  }

  const built = perFrame(build);
  readTheme(el);
  const stops = [
    onTraits(model, 'upper lower pairs columns names empty', built),
    onTraits(model, 'selected writable max_lines', states),
    onTraits(model, 'pairing', () => { held = null; message = ''; states(); }),
    onTraits(model, 'label instruction terms', heading),
    watchTheme(() => readTheme(el)),
  ];
  const watcher = new ResizeObserver(() => readTheme(el));
  watcher.observe(area);
  heading(); build();
  return () => { stops.forEach(stop => stop()); watcher.disconnect(); built.stop(); };
}

export default { render };
