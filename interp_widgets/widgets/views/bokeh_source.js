// Receives BokehJS from the kernel and starts it once in the page, whatever the number of figures.

function render({ el }) { el.hidden = true; }

export default {
  initialize({ model }) {
    const entry = bokehEntry(model.get('version'));
    const receive = async (message, buffers) => {
      if (message.kind !== 'code' || entry.started) return;
      entry.started = true;
      const packed = new Blob([buffers[0]]).stream().pipeThrough(new DecompressionStream('gzip'));
      entry.resolve(startBokeh(await new Response(packed).text(), model.get('version')));
    };
    model.on('msg:custom', receive);
    if (window.Bokeh?.version === model.get('version')) { entry.started = true; entry.resolve(window.Bokeh); }
    // The kernel sends the code when it makes this model; a page loaded later has to ask.
    const timer = setTimeout(() => { if (!entry.started) model.send({ kind: 'want' }); }, 300);
    return () => { clearTimeout(timer); model.off('msg:custom', receive); };
  },
  render,
};
