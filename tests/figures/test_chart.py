"""The shared parts of charts: readable ticks, a sentence in place of an empty plot."""

from __future__ import annotations

from bokeh.models import PlainText

from interp_widgets.figures.chart import Chart, plain_label, visible_token


class SampleChart(Chart):
    EMPTY = "nothing here"

    def __init__(self) -> None:
        self.start("sample", "Sample", ("layer", "nats"), columns=("x", "y"), tooltips=[("x", "@x")])
        self.hover(self.figure.scatter("x", "y", source=self.source))


def test_tokens_become_short_visible_words() -> None:
    assert visible_token(" a\tb\n") == "·a⇥b⏎"
    assert visible_token("x" * 12) == "x" * 12
    long = visible_token("internationalisation")
    assert len(long) == 12
    assert long.startswith("inter")
    assert "…" in long


def test_tex_in_a_token_stays_text() -> None:
    assert isinstance(plain_label("$$x$$"), PlainText)
    assert isinstance(plain_label("\\(x"), PlainText)
    assert plain_label("5 $") == "5 $"


def test_a_sentence_stands_where_data_would() -> None:
    chart = SampleChart()
    chart.say()
    assert chart.message == "nothing here"
    assert not chart.figure.xaxis[0].visible
    chart.fill({"x": [1], "y": [2]}, subtitle="one point")
    assert chart.message == ""
    assert chart.figure.xaxis[0].visible
    assert chart._subtitle.text == "one point"
    chart.source.selected.indices = [0]
    chart.say("the run failed")
    assert chart.message == "the run failed"
    assert list(chart.source.data["x"]) == []
    assert chart.source.selected.indices == []
    assert not chart._subtitle.visible


def test_long_axes_name_some_tokens() -> None:
    chart = SampleChart()
    chart.name_ticks(chart.figure.xaxis[0], [str(i) for i in range(130)])
    assert list(chart.figure.xaxis[0].ticker.ticks) == list(range(0, 130, 3))
    assert chart.figure.xaxis[0].major_label_overrides[3] == "3"
    chart.name_ticks(chart.figure.xaxis[0], ["a", "b"])
    assert chart.figure.xaxis[0].major_label_overrides == {0: "a", 1: "b"}


def test_ticks_change_without_another_ticker() -> None:
    chart = SampleChart()
    axis = chart.figure.xaxis[0]
    chart.name_ticks(axis, ["a", "b"])
    ticker = axis.ticker
    chart.name_ticks(axis, ["a", "b", "c"])
    assert axis.ticker is ticker, "a new one is slow: Bokeh would look for its models everywhere"
    assert list(ticker.ticks) == [0, 1, 2]
