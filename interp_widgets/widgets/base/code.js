// The code box: a text area to select from, Copy, and Close.

const make = (tag, name, parent) => {
  const node = document.createElement(tag);
  node.className = name;
  parent.append(node);
  return node;
};

async function copy(area) {
  try {
    await navigator.clipboard.writeText(area.value);
    return true;
  } catch {
    // Without a secure connection there is no clipboard interface: the old command still works.
    area.focus();
    area.select();
    return document.execCommand('copy');
  }
}

function render({ model, el }) {
  const root = make('div', 'iw-codebox', el);
  const area = make('textarea', '', root);
  area.readOnly = true;
  area.spellcheck = false;
  area.setAttribute('aria-label', 'Code that reproduces the result');
  area.dataset.lmSuppressShortcuts = 'true';
  const line = make('div', 'iw-codebox-line', root);
  const button = make('button', 'jupyter-button', line);
  button.type = 'button';
  button.textContent = 'Copy';
  const close = make('button', 'jupyter-button', line);
  close.type = 'button';
  close.textContent = 'Close';
  const said = make('span', 'iw-codebox-said', line);
  said.setAttribute('role', 'status');

  const paint = () => {
    root.hidden = !model.get('visible');
    if (area.value !== model.get('code')) { area.value = model.get('code'); said.textContent = ''; }
    area.rows = Math.min(20, area.value.split('\n').length + 1);
  };
  button.addEventListener('click', async () => {
    said.textContent = (await copy(area)) ? 'Copied' : 'Not allowed here: select the text and press Ctrl+C';
  });
  close.addEventListener('click', () => { model.set('visible', false); model.save_changes(); });
  model.on('change', paint);
  paint();
  return () => model.off('change', paint);
}

export default { render };
