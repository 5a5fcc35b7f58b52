from typing import Any
SETUP = """
from interp_widgets import Workbench, load_model
model = load_model("smollm2")
bench = Workbench(model, live_seconds=20.0)
screen = bench.screen
"""
H = """screen => [...screen.querySelectorAll('.iw-card:not(.iw-hidden)')].map(c => { const i = c.querySelector('.iw-inputs'); return [c.innerText.slice(0,30).replace(/\\n/g,' | '), i ? i.offsetHeight : -1, c.offsetHeight]; })"""
def test_look(nb: Any) -> None:
    nb.make("screen.ipynb", SETUP, "bench")
    nb.run_all()
    nb.resize(1400, 1500)
    nb.wait_py("(screen.busy, screen.status_line.error)", (False, ""), seconds=400)
    screen = nb.page.locator(".iw-screen")
    nb.bokeh_idle(); nb.rests()
    nb.screenshot("me_first", screen)
    screen.locator(".iw-card:not(.iw-hidden) .iw-menu-button").first.click()
    nb.screenshot("me_menu", screen)
    screen.locator(".iw-card:not(.iw-hidden) .iw-menu-button").first.click()
    for pair in (("attention", "patching"), ("ablation", "decomposition"), ("concepts", "data_set"), ("head_words", "ffn_concepts"), ("bias", "clusters"), ("layer_similarity", "mixture_of_depths"), ("circuits", "saliency")):
        nb.py(code=f"screen.show(*{pair!r})")
        nb.py(code="import time; t=time.time()\nwhile screen.busy and time.time()-t<60: time.sleep(0.2)")
        nb.bokeh_idle(); nb.rests()
        print(pair, screen.evaluate(H))
        nb.screenshot("me_" + "_".join(pair), screen)
