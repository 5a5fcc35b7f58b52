// The status line: a live region that stays in place, a progress bar, Cancel, and the error with its traceback folded.

const make = (tag, name, parent) => {
  const node = document.createElement(tag);
  node.className = name;
  parent.append(node);
  return node;
};

function duration(seconds) {
  if (seconds < 1) return 'less than 1 s left';
  const whole = Math.round(seconds);
  if (whole < 60) return `${whole} s left`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s left`;
  return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min left`;
}

// Names that ipywidgets leaves out: of a slider's handle, which takes the focus, and of the buttons that play one.
function nameControls(panel) {
  for (const handle of panel.querySelectorAll('.widget-slider .noUi-handle:not([aria-label])')) {
    handle.setAttribute('aria-label', handle.closest('.widget-slider').querySelector('.widget-label').textContent);
  }
  for (const player of panel.querySelectorAll('.widget-play:not(:has([aria-label]))')) {
    ['Play or pause', 'Stop', 'Repeat'].forEach((name, k) => player.querySelectorAll('button')[k].setAttribute('aria-label', name));
  }
}

// Calls back with the outermost panel of a view once it stands in the page, and after changes in it, once a frame.
function watchPanel(el, callback) {
  let panel = null, frame = 0;
  const later = () => { frame ||= requestAnimationFrame(() => { frame = 0; callback(panel); }); };
  const watcher = new MutationObserver(later);
  const shown = new ResizeObserver(() => {
    for (let up = el.closest('.iw-panel'); up; up = up.parentElement.closest('.iw-panel')) panel = up;
    if (!panel) return;
    shown.disconnect();
    watcher.observe(panel, { childList: true, subtree: true });
    later();
  });
  shown.observe(el);
  return () => { shown.disconnect(); watcher.disconnect(); cancelAnimationFrame(frame); };
}

function render({ model, el }) {
  const root = make('div', 'iw-status', el);
  const line = make('div', 'iw-status-line', root);
  const text = make('span', 'iw-status-text', line);
  text.setAttribute('role', 'status');
  const bar = make('progress', 'iw-status-bar', line);
  bar.setAttribute('aria-label', 'Progress');
  const left = make('span', 'iw-status-left', line);
  const cancel = make('button', 'iw-status-cancel jupyter-button', line);
  cancel.type = 'button';
  cancel.textContent = 'Cancel';
  cancel.title = 'Stop the run (Esc)';
  const problem = make('div', 'iw-status-error', root);
  const sentence = make('div', 'iw-status-sentence', problem);
  sentence.setAttribute('role', 'alert');
  const fold = make('details', 'iw-status-fold', problem);
  make('summary', '', fold).textContent = 'Traceback';
  const trace = make('pre', 'iw-status-trace', fold);
  trace.tabIndex = 0;

  const busy = () => ['queued', 'running', 'cancelling'].includes(model.get('state'));
  const put = (node, value) => { if (node.textContent !== value) node.textContent = value; };

  function paint() {
    const state = model.get('state'), done = model.get('done_steps'), total = model.get('total_steps');
    root.dataset.state = state;
    put(text, model.get('text'));
    bar.hidden = !busy();
    if (total > 0 && state === 'running') { bar.max = total; bar.value = done; } else bar.removeAttribute('value');
    const seconds = model.get('seconds_left');
    put(left, state === 'running' && total > 0
      ? `${done} of ${total}` + (seconds === null ? '' : `, ${duration(seconds)}`) : '');
    cancel.hidden = !busy();
    cancel.disabled = state === 'cancelling';
    const error = model.get('error');
    problem.hidden = !error;
    put(sentence, error);
    put(trace, model.get('trace'));
    if (!error) fold.open = false;
  }

  const stop = () => model.send({ event: 'cancel' });
  // JupyterLab takes Escape in the capture phase of the document; the window comes before it.
  const key = event => {
    if (event.target.closest?.('[role="menu"]')) return;  // there it closes the menu
    if (event.key === 'Escape' && busy() && el.closest('.iw-panel')?.contains(event.target)) stop();
  };
  cancel.addEventListener('click', stop);
  window.addEventListener('keydown', key, true);
  model.on('change', paint);
  paint();
  const forget = watchPanel(el, nameControls);
  return () => { forget(); window.removeEventListener('keydown', key, true); model.off('change', paint); };
}

export default { render };
