// Hosts a Bokeh figure: one document kept up to date even while nothing shows it, a copy of it for each view.

const SILENT = new Set(['inner_width', 'inner_height', 'outer_width', 'outer_height']);  // layout, no news to Python
const REST_BETWEEN = 100;  // milliseconds between two messages to Python while a reader drags
const PICTURE_AFTER = 1200;  // milliseconds of rest after which a picture is kept for pages without a kernel

function forget(Bokeh, doc) {
  const at = Bokeh.documents.indexOf(doc);
  if (at >= 0) Bokeh.documents.splice(at, 1);
}

function repaint(views) {
  const visit = view => {
    // Bokeh paints over what is there: the half pixels at the edges would keep the colour of the other theme.
    for (const layer of [view.canvas_view?.primary, view.canvas_view?.overlays]) {
      if (!layer?.ctx) continue;
      layer.ctx.save();
      layer.ctx.resetTransform?.();
      layer.ctx.clearRect(0, 0, layer.canvas.width, layer.canvas.height);
      layer.ctx.restore();
    }
    if (view.model?.type === 'Toolbar') view.after_render?.();  // it folds while the new style sheets load
    if (view.request_repaint) view.request_repaint();
    else view.request_paint?.();
    for (const child of view.child_views ?? []) visit(child);
  };
  for (const root of views.roots ?? []) visit(root);
}

// What is written in a figure, for those who do not see it: titles, names of axes and legends, the sentence in an empty one.
function wording(doc) {
  const parts = [];
  for (const model of doc._all_models.values()) {
    const text = model.type === 'LegendItem' ? model.label?.value : model.axis_label ?? model.text;
    const words = text?.text ?? text;
    if (typeof words === 'string' && words.trim() && model.visible !== false && !parts.includes(words)) parts.push(words);
  }
  return parts.join('; ') || 'figure';
}

// Has the page make the model that brings BokehJS, where one is made only when it is asked for.
async function askForSource(model) {
  try { await model.widget_manager?.get_model?.(model.get('_source')); } catch { return; }  // not stored with its notebook
}

export default () => {
  // `shown`: the copies of the document that views show, each with the patches that wait for its views to be made;
  // `views`: what draws each view of the figure anew.
  const state = {
    queue: [], text: '', asked: false, master: null, shown: new Map(), views: new Set(), muted: false, Bokeh: null, ready: null,
  };

  // Applies a patch to a document without sending it back; where its views are being made, afterwards: Bokeh looks for
  // no changes before.
  function patchOne(doc, patch, buffers) {
    const waiting = state.shown.get(doc);
    if (waiting) { waiting.push([patch, buffers]); return; }
    state.muted = true;
    try { doc.apply_json_patch(patch, buffers); } finally { state.muted = false; }
  }

  // Applies a patch to all documents but the one it came from.
  function apply(patch, buffers, except) {
    for (const doc of [state.master, ...state.shown.keys()]) if (doc && doc !== except) patchOne(doc, patch, buffers);
  }

  // What one frame changed goes to Python together, the last value of each property only; while changes go on (a drag),
  // ten times a second: every message costs the page and the kernel more than a frame's drawing.
  function makeOutbox(model) {
    let waiting = new Map(), timer = 0, sent = -Infinity;
    const flush = () => {
      clearTimeout(timer);
      timer = 0;
      if (!waiting.size) return;
      sent = performance.now();
      model.send({ kind: 'events', contents: [...waiting.values()] });
      waiting = new Map();
    };
    return {
      flush,
      put(content) {
        if (content.kind === 'ModelChanged') {
          const key = `${content.model.id} ${content.attr}`;
          waiting.delete(key);
          waiting.set(key, content);
          if (!timer) timer = setTimeout(flush, Math.max(16, REST_BETWEEN - (performance.now() - sent)));
        } else { flush(); model.send({ kind: 'events', contents: [content] }); }
      },
    };
  }

  // Draws a copy of the document into an element; returns what removes it.
  async function show(model, el) {
    const { Bokeh } = state;
    const { Document } = Bokeh.require('document'), { Serializer } = Bokeh.require('core/serialization');
    const { add_document_standalone } = Bokeh.require('embed/standalone');
    const doc = Document.from_json(JSON.parse(state.master.to_json_string()));
    const outbox = makeOutbox(model);
    let views = null, timer = 0;
    const keepPicture = () => { clearTimeout(timer); if (model.get('keep_picture')) timer = setTimeout(takePicture, PICTURE_AFTER); };
    function takePicture() {
      if (!el.isConnected || !el.clientWidth || document.hidden) return;
      const sheets = (views?.roots ?? []).map(view => view.export?.('auto', false)?.canvas).filter(sheet => sheet?.width);
      if (!sheets.length) return;
      const url = sheets[0].toDataURL('image/png');
      if (url !== model.get('_picture')) send(model, { _picture: url });
    }
    state.shown.set(doc, []);
    const describe = perFrame(() => el.setAttribute('aria-label', wording(doc)));
    doc.on_change(event => {
      keepPicture();
      describe();
      if (state.muted || !state.shown.has(doc) || SILENT.has(event.attr)) return;
      const references = new Map();
      for (const one of event.document._all_models.values()) references.set(one, one.ref());
      const content = new Serializer({ references }).encode(event);
      outbox.put(content);
      if (content.kind !== 'MessageSent') apply({ events: [content] }, new Map(), doc);
    });
    views = await add_document_standalone(doc, el);
    const waiting = state.shown.get(doc) ?? [];
    if (state.shown.has(doc)) state.shown.set(doc, null);
    for (const [patch, buffers] of waiting) patchOne(doc, patch, buffers);
    improveViews(views.roots ?? []);
    const stop = watchTheme(() => { repaint(views); keepPicture(); });
    keepPicture();
    describe();
    return () => {
      stop();
      describe.stop();
      clearTimeout(timer);
      outbox.flush();
      state.shown.delete(doc);
      views.clear?.();
      doc.clear();
      forget(Bokeh, doc);
    };
  }

  return {
    // Runs once per page and must not wait for long: anywidget gives a model up for good after 2 seconds.
    initialize({ model }) {
      let started;
      state.ready = new Promise(resolve => { started = resolve; });
      const read = () => {
        const { Document } = state.Bokeh.require('document');
        state.master = Document.from_json(JSON.parse(state.text));
      };
      const start = () => {
        read();
        for (const held of state.queue.splice(0)) receive(...held);
        started();
      };
      // The whole figure: patches that came before are in it.
      const renew = text => {
        if (state.master && text === state.text) return;
        state.text = text;
        state.queue = [];
        if (!state.Bokeh) return;
        if (!state.master) { start(); return; }
        forget(state.Bokeh, state.master);
        read();
        for (const draw of state.views) draw();
      };
      const receive = (message, buffers) => {
        if (message.kind === 'document') renew(message.document);
        if (message.kind !== 'patch') return;
        if (!state.master) { state.queue.push([message, buffers]); return; }
        const parts = (message.ids ?? []).map((id, k) => {
          const b = buffers[k];
          return [id, b.buffer.slice(b.byteOffset, b.byteOffset + b.byteLength)];
        });
        apply(JSON.parse(message.patch), new Map(parts));
      };
      const changed = () => renew(model.get('_document'));  // Python sends the state where messages were lost
      model.on('msg:custom', receive);
      model.on('change:_document', changed);
      state.text = model.get('_document');
      bokehEntry(model.get('_version')).ready.then(Bokeh => {
        state.Bokeh = Bokeh;
        if (state.text) start();
      });
      return () => {
        model.off('msg:custom', receive);
        model.off('change:_document', changed);
        const docs = [state.master, ...state.shown.keys()].filter(Boolean);
        state.views.clear();
        state.shown.clear();
        state.master = null;
        for (const doc of docs) { doc.clear(); forget(state.Bokeh, doc); }
      };
    },

    async render({ model, el, signal }) {
      el.classList.add('iw-view', 'iw-bokeh');
      el.setAttribute('role', 'figure');
      if (!state.text && !state.asked) { state.asked = true; model.send({ kind: 'want' }); }
      if (!state.Bokeh) askForSource(model);
      const note = setTimeout(() => {
        el.textContent = '';
        if (model.get('_picture')) Object.assign(element('img', '', el), { src: model.get('_picture'), alt: 'The figure as last drawn' });
        else element('div', 'iw-empty', el).textContent = 'Run this cell to draw the figure';
      }, 1500);
      await state.ready;
      clearTimeout(note);
      if (signal?.aborted || !state.master) return undefined;
      let remove = null, turn = 0;
      const draw = async () => {
        const mine = ++turn;
        remove?.();
        remove = null;
        el.textContent = '';
        const made = await show(model, el);
        if (mine === turn) remove = made;
        else made();
      };
      state.views.add(draw);
      await draw();
      return () => {
        turn += 1;
        state.views.delete(draw);
        remove?.();
      };
    },
  };
};
