// Tens of thousands of dots of a Bokeh scatter at the speed of a picture, without a graphics card.
//
// Bokeh draws each dot as a path of its own: 40,000 take a tenth of a second and more. Here they are stamped into an
// array of pixels that reaches beyond the frame; while a reader drags or zooms, that picture is moved, and it is made
// anew at rest or where it does not reach. Everything else (hover, lasso, axes) stays Bokeh's.

const MANY_POINTS = 'many points';  // tag of a renderer whose dots are drawn here
const FEWEST_POINTS = 2000;  // below, Bokeh's own drawing is as fast and smoother
const SUBPIXELS = 4;  // places within a pixel, each way, that a dot is drawn for
const STAMPS = new Map();

// How far a place is outside of a shape of this radius, in pixels; shapes as Bokeh draws them.
const OUTSIDE = {
  circle: (x, y, r) => Math.hypot(x, y) - r,
  square: (x, y, r) => Math.max(Math.abs(x), Math.abs(y)) - r,
  diamond: (x, y, r) => (Math.abs(x) * 1.5 + Math.abs(y)) / 1.8 - r / 1.8,
  triangle: (x, y, r) => Math.max(y - r / Math.sqrt(3), (Math.abs(x) * Math.sqrt(3) - y) / 2 - r / Math.sqrt(3)),
};

// Which pixels a dot covers and how much of each (0..255), for every place of its middle within a pixel.
function stampsOf(radius, shape) {
  const outside = OUTSIDE[shape] ?? OUTSIDE.circle, key = `${shape} ${radius.toFixed(2)}`;
  if (STAMPS.has(key)) return STAMPS.get(key);
  const reach = Math.ceil(1.2 * radius) + 1, made = [];
  for (let v = 0; v < SUBPIXELS; v++) for (let u = 0; u < SUBPIXELS; u++) {
    const dx = [], dy = [], part = [];
    for (let y = -reach; y <= reach; y++) for (let x = -reach; x <= reach; x++) {
      const off = outside(x + 0.5 - (u + 0.5) / SUBPIXELS, y + 0.5 - (v + 0.5) / SUBPIXELS, radius);
      const covered = Math.round(255 * Math.max(0, Math.min(1, 0.5 - off)));
      if (covered > 4) { dx.push(x); dy.push(y); part.push(covered); }
    }
    made.push({ dx, dy, part });
  }
  STAMPS.set(key, { reach, made });
  return STAMPS.get(key);
}

// Lays dots over one another in `pixels` (w × h, colours times their opacity, alpha in the highest byte).
function stampDots({ pixels, w, h }, { sx, sy, colors, shapes, opacity, radius, scale, left, top, indices }) {
  const full = Math.round(opacity * 256), stamps = new Map();
  const stampOf = shape => {
    if (!stamps.has(shape)) {
      const { reach, made } = stampsOf(radius, shape);
      stamps.set(shape, { reach, made, offsets: made.map(({ dx, dy }) => Int32Array.from(dx, (x, k) => dy[k] * w + x)) });
    }
    return stamps.get(shape);
  };
  for (const i of indices) {
    const x = sx[i] * scale - left, y = sy[i] * scale - top, { reach, made, offsets } = stampOf(shapes.get(i));
    if (!(x > -reach && y > -reach && x < w + reach && y < h + reach)) continue;
    const px = Math.floor(x), py = Math.floor(y), which = Math.floor((y - py) * SUBPIXELS) * SUBPIXELS + Math.floor((x - px) * SUBPIXELS);
    const { dx, dy, part } = made[which], offset = offsets[which], middle = py * w + px, color = colors.get(i);
    const alpha = (color & 255) * full >>> 8;
    const red_blue = (color >>> 24) | ((color >>> 8) & 255) << 16, green = (color >>> 16) & 255 | 0xff0000;
    const inside = px >= reach && py >= reach && px < w - reach && py < h - reach;
    for (let k = 0; k < offset.length; k++) {
      if (!inside) {
        const X = px + dx[k], Y = py + dy[k];
        if (X < 0 || Y < 0 || X >= w || Y >= h) continue;
      }
      const at = middle + offset[k], was = pixels[at], a = part[k] * alpha >>> 8, rest = 256 - a;
      // two of the four bytes at a time, each with 8 bits of room above it
      const rb = red_blue * a + (was & 0xff00ff) * rest, ga = green * a + (was >>> 8 & 0xff00ff) * rest;
      pixels[at] = rb >>> 8 & 0xff00ff | ga & 0xff00ff00;
    }
  }
}

// Colours times opacity as canvases store them → colours beside opacity as `putImageData` takes them.
function unmultiply(pixels) {
  for (let at = 0; at < pixels.length; at++) {
    const was = pixels[at];
    if (!was) continue;
    const alpha = was >>> 24;
    if (alpha >= 248) { pixels[at] = was | 0xff000000; continue; }
    const up = 255 / alpha, red = (was & 255) * up, green = (was >>> 8 & 255) * up, blue = (was >>> 16 & 255) * up;
    pixels[at] = alpha << 24 | Math.min(255, blue) << 16 | Math.min(255, green) << 8 | Math.min(255, red);
  }
}

function sheetFor(held, w, h) {
  if (held?.w === w && held.h === h) { held.pixels.fill(0); return held; }
  const canvas = document.createElement('canvas');
  canvas.width = w;
  canvas.height = h;
  const ctx = canvas.getContext('2d', { willReadFrequently: true }), image = ctx.createImageData(w, h);
  return { w, h, canvas, ctx, image, pixels: new Uint32Array(image.data.buffer) };
}

// Makes one renderer view draw this way; what is no plain scatter of many dots on a canvas is left to Bokeh.
function drawManyPoints(view) {
  const own = view._paint;
  let sheet = null, made = null;

  function redraw(scale, frame) {
    const margin = frame.width * frame.height * scale * scale > 2e6 ? 0.25 : 0.5;  // memory: 16 bytes per pixel at most
    const left = Math.floor((frame.left - margin * frame.width) * scale), top = Math.floor((frame.top - margin * frame.height) * scale);
    sheet = sheetFor(sheet, Math.ceil((1 + 2 * margin) * frame.width * scale), Math.ceil((1 + 2 * margin) * frame.height * scale));
    const { sx, sy } = view.glyph, selected = view.model.data_source.selected.indices;
    const dots = (glyph, indices) => stampDots(sheet, {
      sx, sy, indices, scale, left, top, radius: glyph.size.get(0) / 2 * scale,
      colors: glyph.visuals.fill.fill_color, shapes: glyph.marker, opacity: glyph.visuals.fill.fill_alpha.get(0),
    });
    const all = Array.from({ length: sx.length }, (_, i) => i);
    if (selected.length) {
      const held = new Set(selected);
      dots(view.nonselection_glyph, all.filter(i => !held.has(i)));
      dots(view.selection_glyph, selected);
    } else dots(view.glyph, all);
    unmultiply(sheet.pixels);
    sheet.ctx.putImageData(sheet.image, 0, 0);
    return { left, top };
  }

  function paint(ctx) {
    view.map_data();
    const { a: scale, e, f } = ctx.getTransform(), { bbox: frame } = view.plot_view.frame;
    const { xscale, yscale, glyph } = view;
    // where the data's zero lies and how long its unit is, in pixels of the canvas
    const x0 = xscale.compute(0), y0 = yscale.compute(0);
    const now = { x0: x0 * scale + e, y0: y0 * scale + f, x: (xscale.compute(1) - x0) * scale, y: (yscale.compute(1) - y0) * scale };
    const state = [scale, frame.left, frame.top, frame.width, frame.height, glyph.x, glyph.y, glyph.visuals.fill.fill_color,
      view.model.data_source.selected.indices, glyph.size.get(0), glyph.visuals.fill.fill_alpha.get(0), glyph.marker];
    const resting = !(view.model.document?.interactive_duration() >= 0);
    const same = made && state.every((value, k) => value === made.state[k]);
    let place = same && placeOf(now);
    const exact = place && Math.abs(place.wide - sheet.w) < 0.5 && Math.abs(place.high - sheet.h) < 0.5;
    const covers = place && place.left <= frame.left * scale && place.top <= frame.top * scale
      && place.left + place.wide >= frame.right * scale && place.top + place.high >= frame.bottom * scale;
    if (!place || !covers || (!exact && (resting || place.wide > 2 * sheet.w))) {
      made = { state, ...now, ...redraw(scale, frame) };
      place = { left: made.left + e, top: made.top + f, wide: sheet.w, high: sheet.h };
    } else if (exact) place = { left: Math.round(place.left), top: Math.round(place.top), wide: sheet.w, high: sheet.h };
    ctx.save();
    ctx.setTransform(1, 0, 0, 1, 0, 0);
    ctx.drawImage(sheet.canvas, place.left, place.top, place.wide, place.high);
    ctx.restore();
  }

  // Where the sheet lies now that the data's zero and unit have moved.
  function placeOf(now) {
    const across = now.x / made.x, down = now.y / made.y;
    return {
      left: now.x0 + (made.left - made.x0) * across, top: now.y0 + (made.top - made.y0) * down,
      wide: sheet.w * across, high: sheet.h * down,
    };
  }

  const able = ctx => ctx instanceof CanvasRenderingContext2D && view.all_indices?.count > FEWEST_POINTS
    && view.all_indices.count === view.glyph.sx?.length && view.glyph.marker && view.glyph.visuals?.fill && !view.model.muted && !view.hover_glyph;

  view._paint = ctx => { if (able(ctx)) paint(ctx); else own.call(view, ctx); };
  paintEachFrame(view.plot_view);
  for (const each of viewsBelow([view.plot_view])) holdStyles(each, view.plot_view);
}

// While a reader drags, what the page's style sheets say is not asked again for every text and line: each question makes
// the browser work out the styles of the whole notebook.
function holdStyles(view, plot) {
  for (const visual of view.visuals ?? []) {
    const ask = visual._get_css_value, held = new Map();
    if (!ask) continue;
    visual._get_css_value = name => {
      const moving = plot.model.document?.interactive_duration() >= 0;
      if (!moving || !held.has(name)) held.set(name, ask.call(visual, name));
      return held.get(name);
    };
  }
}

// Bokeh waits 16 ms and then for the next frame, so that of 60 frames only 30 are drawn.
function paintEachFrame(plot) {
  let asked = null;
  plot.throttled_paint = () => asked ??= new Promise((resolve, reject) => {
    requestAnimationFrame(() => {
      asked = null;
      try { if (!plot.is_destroyed) plot.repaint(); resolve(); } catch (error) { reject(error); }
    });
  });
  plot.request_repaint();
}

// What a tooltip wears: the colours of the page, which Bokeh's own do not follow.
const TIP_STYLE = '.bk-tooltip-row-label { color: var(--iw-muted); }';

const LOOKS_AFTER_CHANGE = 4;  // paintings after a change: sizes of labels and frame settle in two or three

// Makes the tooltips of a hover tool follow the theme, and keeps them away while the figure is dragged or zoomed.
function dressTooltips(hover) {
  const dress = () => { for (const tip of hover.ttmodels.values()) tip.setv({ css_classes: ['iw-bokeh-tip'], stylesheets: [TIP_STYLE] }); };
  const update = hover._update_ttmodels, inspect = hover._inspect;
  hover._update_ttmodels = async function () { await update.call(hover); dress(); };
  hover._inspect = function (sx, sy, dims) {
    const moving = hover.plot_view.model.document?.interactive_duration() >= 0;
    inspect.call(hover, moving ? Infinity : sx, moving ? Infinity : sy, dims);
    for (const [renderer, tip] of hover.ttmodels) if (!renderer.visible) tip.clear();
  };
  dress();
  lookAgain(hover);
}

// Looks again at what is under a resting pointer after the figure has changed. Bokeh does so only while the frame keeps
// its place, lest a tooltip that moves the frame call itself for ever: hence only a few times after each change.
function lookAgain(hover) {
  const plot = hover.plot_view;
  let left = 0;
  plot.model.document.on_change(() => { left = LOOKS_AFTER_CHANGE; });
  hover.connect(plot.repainted, () => {
    const at = hover._current_sxy, frame = plot.frame.bbox;
    if (!left || !at || !hover.model.active) return;
    left -= 1;
    hover._current_bbox = frame.clone();
    if (frame.contains(at[0], at[1])) hover._inspect(...at);
    else hover._clear();
  });
}

// All views below `views`, each once: Bokeh keeps some as children and others by role.
function viewsBelow(views) {
  const seen = new Set(), visit = view => {
    if (!view || seen.has(view)) return;
    seen.add(view);
    for (const child of [...view.child_views ?? [], ...view.children_views?.() ?? []]) visit(child);
  };
  for (const view of views) visit(view);
  return seen;
}

function improveViews(views) {
  for (const view of viewsBelow(views)) {
    if (view.model.type === 'GlyphRenderer' && view.model.tags.includes(MANY_POINTS)) drawManyPoints(view);
    if (view.model.type === 'GlyphRenderer' && view.model.tags.includes(NAMES)) drawNames(view);
    if (view.frame && view.model.tags?.includes(EQUAL_ASPECT)) keepAspect(view);
    if (view.model.type === 'HoverTool') dressTooltips(view);
  }
}
