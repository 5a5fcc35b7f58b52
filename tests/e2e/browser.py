"""Find a Chromium for the browser tests, or install one: the machine's own, else apt as root, else Playwright's."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
VARIABLE = "INTERP_WIDGETS_CHROMIUM"


def find_chromium() -> str | None:
    """Path of a usable Chromium or Chrome, or None; the variable INTERP_WIDGETS_CHROMIUM goes first."""
    named = os.environ.get(VARIABLE)
    if named:
        return named if Path(named).exists() else None
    for name in NAMES:
        path = shutil.which(name)
        if path:
            return path
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return None
    with sync_playwright() as playwright:
        path = playwright.chromium.executable_path
    return path if Path(path).exists() else None


def install_chromium() -> str | None:
    """Install a Chromium with apt when root, else with Playwright, and return its path."""
    if shutil.which("apt-get") and os.geteuid() == 0:
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        subprocess.run(["apt-get", "update", "-qq"], check=False, env=environment)
        for browser in ("chromium-headless-shell", "chromium"):  # the first draws the same with less work
            packages = [browser, "fonts-dejavu-core", "fonts-noto-color-emoji"]
            subprocess.run(["apt-get", "install", "-y", "-qq", *packages], check=False, env=environment)
            if path := find_chromium():
                return path
    if find_chromium() is None:
        subprocess.run([sys.executable, "-m", "playwright", "install", "chromium"], check=False)
    return find_chromium()


def main() -> int:
    """Print the browser's path, installing one if there is none; exit code 1 if that failed."""
    path = find_chromium() or install_chromium()
    if path is None:
        print(
            "No Chromium found and none could be installed: install Chromium or Chrome, "
            f"or set {VARIABLE} to its path, then run make test again.",
            file=sys.stderr,
        )
        return 1
    print(f"browser: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
