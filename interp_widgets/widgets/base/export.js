// Runs the views of a saved page from their stored state: a small stand-in for the notebook's widget models.

function makeModel(state) {
  const values = {}, listeners = new Map(), changed = new Set();
  for (const [name, value] of Object.entries(state.values)) values[name] = value;
  for (const [name, text] of Object.entries(state.binary)) {
    const raw = Uint8Array.from(atob(text), char => char.charCodeAt(0));
    values[name] = new DataView(raw.buffer);
  }
  const fire = event => { for (const call of [...(listeners.get(event) ?? [])]) call(); };
  return {
    get: name => values[name],
    set(name, value) {
      if (values[name] === value) return;
      values[name] = value;
      changed.add(name);
      fire(`change:${name}`);
    },
    on(events, call) {
      for (const event of events.split(' ')) listeners.set(event, [...(listeners.get(event) ?? []), call]);
    },
    off(events, call) {
      for (const event of events.split(' ')) listeners.set(event, (listeners.get(event) ?? []).filter(one => one !== call));
    },
    save_changes() { changed.clear(); },  // nobody to tell
    send() {},
  };
}

async function showViews(views, modules) {
  const models = [];
  for (const view of views) {
    const model = makeModel(view), found = modules[view.module];
    const module = typeof found === 'function' ? await found() : found;
    models.push(model);
    await module.initialize?.({ model });
    const control = new AbortController();
    await module.render?.({ model, el: document.getElementById(view.id), signal: control.signal });
  }
  return models;
}

// Joins a map with the strips of its rows and columns as the notebook does: the hovered or chosen column shades the row
// tokens, the hovered, brushed or chosen rows shade the column tokens; with none the strips look as they were saved.
function linkViews(models, link) {
  const heat = models[link.map], row = models[link.rows], column = models[link.columns];
  const [R, C] = heat.get('shape'), raw = heat.get('data');
  const A = new Float32Array(raw.buffer.slice(raw.byteOffset, raw.byteOffset + 4 * R * C));
  const view = text => new DataView(Uint8Array.from(atob(text), char => char.charCodeAt(0)).buffer);
  const scale = { lut: view(link.lut), lut_dark: view(link.lut_dark), vmin: heat.get('vmin'), vmax: heat.get('vmax'), value_label: heat.get('value_label') };
  const names = [...Object.keys(scale), 'values'];
  const saved = new Map([row, column].map(strip => [strip, Object.fromEntries(names.map(name => [name, strip.get(name)]))]));
  const wear = (strip, state) => { for (const name of names) strip.set(name, state[name]); };
  const shade = (strip, numbers) => wear(strip, { ...scale, values: new DataView(Float32Array.from(numbers).buffer) });
  const chosen = strip => strip.get('hovered') >= 0 ? strip.get('hovered') : strip.get('selected');

  const byColumn = () => {
    const c = chosen(column);
    if (c < 0 || c >= C) wear(row, saved.get(row));
    else shade(row, Array.from({ length: R }, (_, r) => A[r * C + c]));
  };
  const byRows = () => {
    const brush = row.get('brush'), r = chosen(row);
    const [start, end] = brush.length === 2 ? brush : [r, r + 1];
    if (start < 0 || end > R) { wear(column, saved.get(column)); return; }
    shade(column, Array.from({ length: C }, (_, c) => {
      let sum = 0;
      for (let k = start; k < end; k++) sum += A[k * C + c];
      return sum / (end - start);
    }));
  };
  for (const strip of [row, column]) strip.set('live_hover', true);
  column.on('change:hovered change:selected', byColumn);
  row.on('change:hovered change:selected change:brush', byRows);
  heat.on('change:pinned', () => {
    const [r, c] = heat.get('pinned').length === 2 ? heat.get('pinned') : [-1, -1];
    row.set('selected', r);
    column.set('selected', c);
  });
}
