"""The doctor says what is wrong in one line, and its exit code agrees."""

from __future__ import annotations

from pathlib import Path

import pytest

from interp_widgets import doctor


@pytest.mark.seconds
def test_a_sound_installation_exits_with_zero(capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor.main() == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines] == ["python", "packages", "front", "device", "memory", "demo", "profile"]
    assert all(line.startswith("ok") for line in lines)
    assert "no attention sink" in lines[-1]


def test_the_profile_of_a_named_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor.main("demo-base") == 0
    assert capsys.readouterr().out.startswith("demo-base begins a text with its BOS token")
    assert doctor.main("no-such-folder") == 1
    assert "no-such-folder" in capsys.readouterr().err


def test_a_missing_package_is_named_and_ends_the_report(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "PACKAGES", ("torch", "no-such-package"))
    assert doctor.main() == 1
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("FAIL")
    assert "pip install no-such-package" in last


def test_a_missing_extension_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(doctor.sys, "prefix", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    finding = doctor.check_front_end()
    assert not finding.ok
    assert "not installed for JupyterLab" in finding.text


def test_a_broken_demo_model_fails_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    import interp_widgets.models as models

    def broken() -> None:
        raise ValueError("weights are not finite")

    monkeypatch.setattr(models, "load_demo_pair", broken)
    assert not doctor.check_demo().ok
