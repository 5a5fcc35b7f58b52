"""MkDocs reads the pages of `contents.py`, and gets `llms.txt` beside them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from contents import Site
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from search import weigh

SITE = Site()


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """The whole navigation."""
    config.nav = SITE.nav
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """All pages, whether written or generated, and the files that they point at."""
    for place, text in SITE.pages.items():
        if (known := files.get_file_from_path(place)) is not None:
            files.remove(known)
        files.append(File.generated(config, place, content=text))
    for place, path in SITE.files.items():
        files.append(File.generated(config, place, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Tables of numbers are not searched."""
    if page.file.src_uri in ("results.md", "architectures.md"):
        page.meta["search"] = {"exclude": True}
    return markdown


def on_post_page(output: str, **_: Any) -> str:
    """The theme gives its search, a dialog, no name."""
    return output.replace(
        'data-md-component="search" role="dialog"', 'data-md-component="search" role="dialog" aria-label="Search"'
    )


@event_priority(100)  # before the index is written
def on_post_build(config: MkDocsConfig) -> None:
    """The weights of the search, and what an assistant reads first."""
    plugin = config.plugins["material/search"]
    weigh(plugin.search_index.entries, plugin.config.separator)
    Path(config.site_dir, "llms.txt").write_text(SITE.llms(), encoding="utf-8")
