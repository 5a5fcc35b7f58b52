// Small square maps on one colour scale, each in its own canvas: one pixel a cell, stretched by the style sheet.

const GAP = 3, LEAST = 26, MOST = 72;

function render({ model, el, signal }) {
  el.classList.add('iw-view');
  const head = element('div', 'iw-head', el), title = element('div', 'iw-title iw-whole', head);
  const list = element('div', 'iw-thumbs', el), empty = element('div', 'iw-empty', el);
  const tip = makeTip(el), opt = { signal };
  list.setAttribute('role', 'listbox');
  let theme = readTheme(el), thumbs = [], shown = 0, at = 0;

  const labelled = () => model.get('row_labels').length > 0;
  const told = index => [model.get('names')[index], model.get('notes')[index]].filter(Boolean).join('\n');
  const indexOf = node => { const thumb = node.closest?.('.iw-thumb'); return thumb ? thumbs.indexOf(thumb) : -1; };

  function build() {
    const held = list.contains(document.activeElement);
    list.textContent = '';
    thumbs = [];
    const count = model.get('count'), columns = model.get('columns'), captions = model.get('captions');
    const rows = model.get('row_labels'), above = model.get('column_labels');
    if (labelled()) {
      element('div', 'iw-thumb-name', list);
      for (let c = 0; c < columns; c++) element('div', 'iw-thumb-name iw-above', list).textContent = above[c] ?? '';
    }
    for (let index = 0; index < count; index++) {
      if (labelled() && index % columns === 0) element('div', 'iw-thumb-name', list).textContent = rows[index / columns] ?? '';
      const thumb = element('div', 'iw-thumb', list);
      element('canvas', '', thumb);
      if (captions.length) element('div', 'iw-thumb-caption', thumb).textContent = captions[index] ?? '';
      thumb.setAttribute('role', 'option');
      thumb.setAttribute('aria-label', told(index));
      thumb.dataset.lmSuppressShortcuts = 'true';  // on the focused node itself, else the notebook takes the arrow keys
      thumbs.push(thumb);
    }
    at = Math.min(at, Math.max(0, count - 1));
    if (held) thumbs[at]?.focus({ preventScroll: true });
  }

  function paint() {
    const size = model.get('size'), data = bytes(model.get('data'));
    if (!data || data.length !== size * size * thumbs.length) return;  // the other half of a change is on its way
    const table = readScale(model, theme), colours = new Uint8ClampedArray(1024);
    for (let code = 0; code < 255; code++) colours.set(table.subarray(4 * Math.round(code / 254 * 255), 4 * Math.round(code / 254 * 255) + 4), 4 * code);
    thumbs.forEach((thumb, index) => {
      const canvas = thumb.firstChild, pixels = new ImageData(size, size);
      canvas.width = canvas.height = size;
      for (let cell = 0, from = index * size * size; cell < size * size; cell++) {
        const code = 4 * data[from + cell];
        for (let part = 0; part < 4; part++) pixels.data[4 * cell + part] = colours[code + part];
      }
      canvas.getContext('2d').putImageData(pixels, 0, 0);
    });
  }

  // As large as the width and, down to LEAST pixels, the height allow.
  function fit() {
    const columns = model.get('columns'), rows = Math.ceil(thumbs.length / columns), side = labelled() ? 24 + GAP : 0;
    const asked = parseFloat(getComputedStyle(el).getPropertyValue('--iw-room'));
    const room = asked || model.get('max_height'), line = GAP + (model.get('captions').length ? 14 : 0);
    const across = Math.floor((el.clientWidth - side - 20) / columns) - GAP;
    const down = Math.floor((room - (labelled() ? 20 : 0) - 6) / Math.max(1, rows)) - line;
    const cell = Math.max(10, Math.min(MOST, across, Math.max(LEAST, down)));
    list.style.maxHeight = `${room}px`;
    list.style.gridTemplateColumns = `${labelled() ? '24px ' : ''}repeat(${columns}, ${cell}px)`;
    for (const thumb of thumbs) Object.assign(thumb.firstChild.style, { width: `${cell}px`, height: `${cell}px` });
  }

  function mark() {
    const selected = model.get('selected');
    if (selected >= 0) at = selected;
    thumbs.forEach((thumb, index) => {
      thumb.setAttribute('aria-selected', String(index === selected));
      thumb.tabIndex = index === at ? 0 : -1;
    });
    const thumb = thumbs[selected];
    if (!thumb) return;
    const top = thumb.offsetTop - list.offsetTop, end = top + thumb.offsetHeight;
    if (top < list.scrollTop || end > list.scrollTop + list.clientHeight) list.scrollTop = top - list.clientHeight / 2;
  }

  function words() {
    const text = [model.get('title'), thumbs.length ? model.get('instruction') : ''].filter(Boolean).join('; ');
    title.textContent = text;
    title.title = [text, model.get('terms')].filter(Boolean).join('\n');
    list.setAttribute('aria-label', model.get('title') || 'maps');
    head.hidden = !text;
    list.hidden = !thumbs.length;
    empty.hidden = thumbs.length > 0;
    empty.textContent = model.get('empty');
  }

  const all = perFrame(() => { theme = readTheme(el); build(); words(); fit(); paint(); mark(); });
  const colours = perFrame(() => { theme = readTheme(el); paint(); });

  function go(to) {
    at = Math.max(0, Math.min(thumbs.length - 1, to));
    thumbs.forEach((thumb, index) => { thumb.tabIndex = index === at ? 0 : -1; });
    thumbs[at]?.focus();
  }

  list.addEventListener('click', event => {
    const index = indexOf(event.target);
    if (index < 0) return;
    go(index);
    send(model, { selected: index });
  }, opt);
  list.addEventListener('keydown', event => {
    const columns = model.get('columns');
    const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns }[event.key];
    if (step) { if (at + step >= 0 && at + step < thumbs.length) go(at + step); }
    else if (event.key === 'Home') go(0);
    else if (event.key === 'End') go(thumbs.length - 1);
    else if (event.key === 'Enter' || event.key === ' ') send(model, { selected: at });
    else if (event.key === 'Escape') send(model, { selected: -1 });
    else return;
    event.preventDefault();
    event.stopPropagation();
  }, opt);
  const point = event => {
    const index = indexOf(event.target);
    if (index < 0) tip.hide(); else tip.show(told(index), thumbs[index].getBoundingClientRect());
  };
  list.addEventListener('pointerover', point, opt);
  list.addEventListener('focusin', point, opt);
  list.addEventListener('pointerleave', () => tip.hide(), opt);
  list.addEventListener('focusout', () => tip.hide(), opt);

  const watcher = new ResizeObserver(() => {  // first shown, shown again in a tab, another width
    if (el.clientWidth === shown) return;
    shown = el.clientWidth;
    if (theme.stale) all();
    else { fit(); mark(); }
  });
  watcher.observe(el);
  const stops = [
    onTraits(model, 'count size columns data lut lut_dark names notes captions row_labels column_labels max_height', all),
    onTraits(model, 'title terms instruction empty', words),
    onTraits(model, 'selected', mark),
    watchTheme(colours),
  ];
  build(); words(); fit(); paint(); mark();
  return () => { stops.forEach(stop => stop()); watcher.disconnect(); all.stop(); colours.stop(); tip.hide(); };
}

export default { render };
