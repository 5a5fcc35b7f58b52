// One BokehJS of each version in a page, kept under one name of the window.

function bokehEntry(version) {
  const all = (window.__interpWidgetsBokeh ??= {});
  if (!all[version]) {
    const entry = { started: false };
    entry.ready = new Promise(resolve => { entry.resolve = resolve; });
    all[version] = entry;
  }
  return all[version];
}

// Runs the code as a plain script, hidden from the page's module loaders, and leaves another Bokeh of the page alone.
function startBokeh(code, version) {
  const before = window.Bokeh;
  const script = document.createElement('script');
  script.textContent = `(function (define, exports, module, require) {${code}\n}).call(window);`;
  document.head.append(script);
  script.remove();
  const ours = window.Bokeh;
  if (before && before.version !== version) window.Bokeh = before;
  return ours;
}
