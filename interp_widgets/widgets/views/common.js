// Helpers shared by the views; this file is put before each view's own module.

const CONTROL = /[\u0000-\u0008\u000b-\u001f\u007f]/g;

// A token as people should see it: spaces, tabs and newlines as faint marks, control characters as their pictures.
function visible(text) {
  return text
    .replace(/ /g, '·').replace(/\u00a0/g, '⍽').replace(/\n/g, '⏎').replace(/\t/g, '⇥')
    .replace(CONTROL, c => c === '\u007f' ? '␡' : String.fromCodePoint(0x2400 + c.charCodeAt(0)));
}

// The same for a name on an axis, which may be a token or words: blanks count at its ends only.
const label = text => visible(text.trim() ? text.replace(/(?<=\S) +(?=\S)/g, '\u0001') : text).replaceAll('␁', ' ');

// Text set apart from its neighbours, so that a right-to-left token does not turn the sentence around it.
const isolate = text => '\u2068' + text + '\u2069';

// Three significant digits, without a cloud of zeros.
function digits(value) {
  if (Number.isNaN(value)) return 'no value';
  if (!Number.isFinite(value)) return value > 0 ? '∞' : '−∞';
  if (value === 0) return '0';
  const size = Math.abs(value);
  let text;
  if (size < 1e-3 || size >= 1e6) {
    const [head, power] = value.toExponential(2).split('e');
    text = head.replace(/\.?0+$/, '') + '×10' + [...String(+power)].map(c => '⁰¹²³⁴⁵⁶⁷⁸⁹'[+c] ?? '⁻').join('');
  } else if (size >= 1000) text = String(Math.round(value));
  else text = String(+value.toPrecision(3));
  return text.replace('-', '−');
}

function floats(view) {
  if (!view || view.byteLength < 4) return new Float32Array(0);
  const bytes = view.buffer.slice(view.byteOffset, view.byteOffset + view.byteLength - view.byteLength % 4);
  return new Float32Array(bytes);
}

function bytes(view) {
  return view && view.byteLength ? new Uint8Array(view.buffer, view.byteOffset, view.byteLength) : null;
}

const linear = v => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
const luminance = (r, g, b) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);

// Black or white, whichever has the better contrast on an opaque colour: at least 4.58.
function inkOn(r, g, b) {
  const light = luminance(r, g, b);
  return 1.05 / (light + 0.05) > (light + 0.05) / 0.05 ? '#ffffff' : '#000000';
}

// The colours of the page as numbers and strings, read where the view stands.
function readTheme(node) {
  const probe = document.createElement('span');
  probe.style.display = 'none';
  node.append(probe);
  const white = [255, 255, 255];
  const color = (name, below) => {  // JupyterLab's text colours are partly transparent
    probe.style.color = `var(${name})`;
    const parts = node.isConnected && getComputedStyle(probe).color.match(/[\d.]+/g)?.map(Number);
    if (!parts) return name === '--iw-bg' ? white : [80, 80, 80];
    const share = parts[3] ?? 1;
    return below.map((v, k) => Math.round(parts[k] * share + v * (1 - share)));
  };
  const bg = color('--iw-bg', white);
  node.classList.toggle('iw-dark', luminance(...bg) < 0.2);  // before the colours that hang on it are read
  const css = name => `rgb(${color(name, bg).join(',')})`;
  const theme = {
    bg, dark: luminance(...bg) < 0.2, background: css('--iw-bg'), fg: css('--iw-fg'), muted: css('--iw-muted'),
    line: css('--iw-line'), select: css('--iw-select'), mark: css('--iw-mark'),
    font: getComputedStyle(node).fontFamily || 'sans-serif',
    stale: !node.isConnected,  // a view is rendered before it stands in the page: read again when it is shown
  };
  probe.remove();
  return theme;
}

// Calls back when the light or dark theme of the page changes; returns the way to stop.
function watchTheme(callback) {
  let timer = 0;
  // The style sheets of a JupyterLab theme arrive a moment after its name.
  const later = () => { callback(); clearTimeout(timer); timer = setTimeout(callback, 250); };
  const watcher = new MutationObserver(later);
  const names = ['data-jp-theme-name', 'data-jp-theme-light', 'data-theme', 'theme', 'class'];
  for (const node of [document.documentElement, document.body]) watcher.observe(node, { attributes: true, attributeFilter: names });
  const media = window.matchMedia('(prefers-color-scheme: dark)');
  media.addEventListener('change', later);
  return () => { watcher.disconnect(); media.removeEventListener('change', later); clearTimeout(timer); };
}

// A number with the name of what it is, if it has one.
const named = (value, name) => digits(value) + (name ? ` (${name})` : '');

// The 256 colours of a scale; a view names one for light pages and, if it differs, one for dark pages.
function readScale(model, theme) {
  const dark = theme.dark ? bytes(model.get('lut_dark')) : null;
  const table = dark && dark.length >= 1024 ? dark : bytes(model.get('lut'));
  if (table && table.length >= 1024) return table;
  const grey = new Uint8Array(1024);
  for (let k = 0; k < 256; k++) grey.set([k, k, k, 255], 4 * k);
  return grey;
}

// A tooltip in the top layer, so that no scrolling area cuts it off.
function makeTip(root) {
  const tip = document.createElement('div');
  tip.className = 'iw-tip';
  tip.setAttribute('aria-hidden', 'true');
  const top = 'popover' in tip;
  if (top) tip.popover = 'manual';
  root.append(tip);
  const hide = () => { if (top) { if (tip.matches(':popover-open')) tip.hidePopover(); } else tip.classList.remove('iw-open'); };
  const show = (text, box) => {
    if (!text || !tip.isConnected) return hide();
    if (tip.textContent !== text) tip.textContent = text;
    if (top) { if (!tip.matches(':popover-open')) tip.showPopover(); } else tip.classList.add('iw-open');
    const size = tip.getBoundingClientRect();
    const left = Math.max(4, Math.min(box.left + box.width / 2 - size.width / 2, window.innerWidth - size.width - 4));
    const above = box.top - size.height - 6;
    tip.style.left = `${left}px`;
    tip.style.top = `${above >= 4 ? above : box.bottom + 6}px`;
  };
  return { show, hide };
}

// Runs the last of many calls once, before the next painted frame.
function perFrame(work) {
  let frame = 0;
  const call = () => { if (!frame) frame = requestAnimationFrame(() => { frame = 0; work(); }); };
  call.stop = () => { cancelAnimationFrame(frame); frame = 0; };
  return call;
}

// Listens to changes of the named traits and returns the way to stop.
function onTraits(model, names, callback) {
  const events = names.split(' ').map(name => `change:${name}`).join(' ');
  model.on(events, callback);
  return () => model.off(events, callback);
}

function send(model, state) {
  for (const [name, value] of Object.entries(state)) model.set(name, value);
  model.save_changes();
}

const inSpans = (spans, i) => spans.some(([start, end]) => i >= start && i < end);
const element = (tag, name, parent) => {
  const node = document.createElement(tag);
  if (name) node.className = name;
  parent?.append(node);
  return node;
};

// Right-to-left when most letters are.
function direction(tokens) {
  let right = 0, left = 0;
  for (const token of tokens) {
    right += (token.match(/[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]/g) ?? []).length;
    left += (token.match(/\p{L}/gu) ?? []).length;
  }
  return right > left / 2 ? 'rtl' : 'ltr';
}

// Writes a token into a node, its blanks and control characters faintly.
function fillToken(node, text) {
  let run = '';
  const flush = () => { if (run) node.append(run); run = ''; };
  for (const char of text) {
    const seen = visible(char);
    if (seen === char) { run += char; continue; }
    flush();
    element('span', 'iw-ws', node).textContent = seen;
  }
  flush();
}
