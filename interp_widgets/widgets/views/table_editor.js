// Writing into a cell of a table: a line of text, one option of some, or several.

// Puts an editor into a cell. `done(value)` is called once, with undefined if nothing is to change; `move` says which
// way the focus goes on: 0 stays, 1 to the next cell that can be written into, -1 to the one before.
function openEditor(cell, column, value, done) {
  const box = element('div', 'iw-edit', null);
  const fields = column.edit === 'choices' ? checks(box, column, value) : [single(box, column, value)];
  const read = () => column.edit === 'choices' ? fields.filter(one => one.checked).map(one => one.value) : fields[0].value;
  let open = true;
  const finish = (keep, move = 0) => {
    if (!open) return;
    open = false;
    done(keep ? read() : undefined, move);
  };
  for (const field of fields) field.dataset.lmSuppressShortcuts = 'true';
  box.dataset.lmSuppressShortcuts = 'true';
  box.addEventListener('keydown', event => {
    event.stopPropagation();  // the table's own keys, and the notebook's
    if (event.isComposing) return;  // Enter ends the composition of a letter
    const last = event.shiftKey ? fields[0] : fields.at(-1);
    if (event.key === 'Enter') finish(true);
    else if (event.key === 'Escape') finish(false);
    else if (event.key === 'Tab' && event.target === last) finish(true, event.shiftKey ? -1 : 1);
    else return;
    event.preventDefault();
  });
  // a click elsewhere keeps what was written
  box.addEventListener('focusout', event => { if (!box.contains(event.relatedTarget)) finish(true); });
  box.addEventListener('click', event => event.stopPropagation());
  cell.textContent = '';
  cell.append(box);
  fields[0].focus();
  fields[0].select?.();
  return { read, write(draft) { put(fields, column, draft); } };
}

function single(box, column, value) {
  const field = element(column.edit === 'choice' ? 'select' : 'input', 'iw-edit-field', box);
  if (column.edit === 'choice') {
    for (const option of ['', ...column.options]) {
      const choice = element('option', '', field);
      choice.value = option;
      choice.textContent = option || '–';
    }
  } else {
    field.type = 'text';
    field.maxLength = 2000;
    field.dir = 'auto';
  }
  field.setAttribute('aria-label', column.label);
  field.value = value ?? '';
  return field;
}

function checks(box, column, value) {
  box.setAttribute('role', 'group');
  box.setAttribute('aria-label', column.label);
  const chosen = chosenOf(value);
  return column.options.map(option => {
    const line = element('label', 'iw-edit-check', box);
    const field = element('input', '', line);
    field.type = 'checkbox';
    field.value = option;
    field.checked = chosen.includes(option);
    line.append(option);
    return field;
  });
}

const chosenOf = value => Array.isArray(value) ? value : value ? String(value).split(', ') : [];

function put(fields, column, draft) {
  if (column.edit === 'choices') for (const field of fields) field.checked = draft.includes(field.value);
  else fields[0].value = draft;
}
