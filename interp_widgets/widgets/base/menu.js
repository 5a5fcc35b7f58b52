// A button and the list of actions it opens: arrows move, Escape and a click elsewhere close it.

const make = (tag, name, parent) => {
  const node = document.createElement(tag);
  node.className = name;
  node.type = 'button';
  parent.append(node);
  return node;
};

function render({ model, el }) {
  el.classList.add('iw-menu');
  const button = make('button', 'iw-menu-button jupyter-button', el);
  button.textContent = '⋯';
  button.setAttribute('aria-haspopup', 'menu');
  const list = document.createElement('div');
  list.className = 'iw-menu-list';
  list.setAttribute('role', 'menu');
  el.append(list);

  const open = () => !list.hidden;
  function show(opened, focus = false) {
    list.hidden = !opened;
    button.setAttribute('aria-expanded', String(opened));
    if (focus) (opened ? list.firstElementChild : button)?.focus();
  }

  function paint() {
    const label = model.get('entries').map(entry => entry.label).join(', ');
    button.title = label;
    button.setAttribute('aria-label', `Menu: ${label}`);
    list.replaceChildren();
    for (const { label, help, checked } of model.get('entries')) {
      const item = make('button', 'iw-menu-item', list);
      item.textContent = label;
      item.title = help;
      item.tabIndex = -1;
      item.setAttribute('role', checked === null ? 'menuitem' : 'menuitemcheckbox');
      if (checked !== null) item.setAttribute('aria-checked', String(checked));
      item.addEventListener('click', () => {
        show(false, true);
        model.send({ event: 'choose', label });
      });
    }
  }

  function key(event) {
    const items = [...list.children], at = items.indexOf(document.activeElement);
    const steps = { ArrowDown: at + 1, ArrowUp: at < 0 ? -1 : at - 1, Home: 0, End: -1 };
    if (event.key in steps) {
      if (!open()) show(true);
      items.at(steps[event.key] % items.length)?.focus();
    } else if (event.key === 'Escape' && open()) {
      show(false, true);
    } else return;
    event.preventDefault();
    event.stopPropagation();
  }
  const elsewhere = event => { if (!el.contains(event.target)) show(false); };

  button.addEventListener('click', () => show(!open()));
  el.addEventListener('keydown', key);
  document.addEventListener('pointerdown', elsewhere, true);
  document.addEventListener('focusin', elsewhere);
  model.on('change:entries', paint);
  paint();
  show(false);
  return () => {
    document.removeEventListener('pointerdown', elsewhere, true);
    document.removeEventListener('focusin', elsewhere);
    model.off('change:entries', paint);
  };
}

export default { render };
