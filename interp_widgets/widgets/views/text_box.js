// A box for a text: what is typed counts after a moment without a key, at Ctrl+Enter, and when the box is left.

const PAUSE = 400;

function render({ model, el }) {
  el.classList.add('iw-textbox');
  const id = `iw-text-${Math.random().toString(36).slice(2)}`;
  const label = document.createElement('label');
  label.htmlFor = id;
  const area = document.createElement('textarea');
  area.id = id;
  area.spellcheck = false;
  area.dataset.lmSuppressShortcuts = 'true';
  el.append(label, area);
  let timer = null;

  const send = () => {
    clearTimeout(timer);
    timer = null;
    if (area.value === model.get('value')) return;
    model.set('value', area.value);
    model.save_changes();
  };
  const paint = () => {
    label.textContent = model.get('description');
    area.placeholder = model.get('placeholder');
    area.rows = model.get('rows');
    label.title = area.title = model.get('hint');
    // anywidget leaves classes that change later to the view
    el.classList.toggle('iw-hidden', model.get('_dom_classes').includes('iw-hidden'));
    // what is being typed is newer than what the kernel says
    if (timer === null && area.value !== model.get('value')) area.value = model.get('value');
  };
  area.addEventListener('input', () => { clearTimeout(timer); timer = setTimeout(send, PAUSE); });
  area.addEventListener('blur', send);
  area.addEventListener('keydown', (event) => {
    event.stopPropagation();
    if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) { event.preventDefault(); send(); }
  });
  model.on('change', paint);
  paint();
  return () => { clearTimeout(timer); model.off('change', paint); };
}

export default { render };
