// Keeps a view alive that a busy page started late. anywidget gives a view's module two seconds to load and start; where
// it takes longer, "[anywidget] Failed to initialize model" is all that ever reaches the view: it is drawn, but every
// later message of Python is dropped. Here the view takes its messages past anywidget then, and asks for what it missed.

function reconnect(model) {
  const manager = model.widget_manager, id = model.get('_own_id');
  if (!manager?.get_model || !id) return;  // a page without a kernel
  setTimeout(async () => {  // when anywidget has noticed that the view has started
    let real;
    try { real = await manager.get_model(id); } catch { return; }  // closed meanwhile
    if (!real) return;
    const waiting = Object.getPrototypeOf(real)?._handle_comm_msg;
    const direct = Object.getPrototypeOf(Object.getPrototypeOf(real))?._handle_comm_msg;
    if (!waiting || !direct || !real.comm) return;
    try {
      await waiting.call(real, { content: { data: { method: 'nothing' } } });
    } catch {
      real.comm.on_msg(message => direct.call(real, message));
      real.comm.send({ method: 'request_state' });
    }
  });
}

function sturdy(view) {
  const started = made => ({
    ...made,
    async initialize(context) {
      const result = await made.initialize?.(context);
      reconnect(context.model);
      return result;
    },
  });
  return typeof view === 'function' ? () => started(view()) : started(view);
}
