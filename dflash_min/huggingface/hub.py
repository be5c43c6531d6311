"""Files of Hugging Face models, from a folder, the Hub's cache or the Hub, and without a network.

huggingface_hub asks the Hub about each file anew. Where that cannot be reached and its cache lacks
the file, it tries six times and prints each time. So the Hub is asked once here, with little
patience, and if there is no answer everything else is looked for in the cache only.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dflash_min.huggingface.form import CONFIG_FILE

if TYPE_CHECKING:
    from dflash_min.huggingface.named import Named

_PATIENCE_S: Final = 2.0
"""For an answer of the Hub, unless the user has set huggingface_hub's own HF_HUB_ETAG_TIMEOUT."""


def file(model: Named, name: str) -> Path | None:
    """Return where a file of a model is, fetched from the Hub if need be; None if there is none.

    Raises:
        UsageError: if the Hub has no such model or does not give it.
    """
    folder = Path(model.name)
    if folder.is_dir():
        return folder / name if (folder / name).is_file() else None
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError

    try:
        return Path(hf_hub_download(model.name, name, local_files_only=local_only(model)))
    except (EntryNotFoundError, FileNotFoundError):
        return None  # not in the repository; or not in the cache, and the Hub is out of reach
    except (OSError, ValueError, HfHubHTTPError) as error:
        raise model.refused(f"no such folder, and {_reason(error)}") from error


def local_only(model: Named) -> bool:
    """Return whether a model is to be looked for on this machine only: what transformers takes."""
    return Path(model.name).is_dir() or unreachable(model.name) is not None


def places(model: Named) -> str:
    """Say where a file was looked for that is not there."""
    if Path(model.name).is_dir():
        return "in the folder"
    reason = unreachable(model.name)
    if reason is None:
        return "in such a folder or on the Hub"
    return f"in such a folder or in the Hub's cache, and the Hub cannot be reached ({reason})"


@functools.cache
def unreachable(name: str) -> str | None:
    """Return why the Hub cannot be asked for a model, None if it answers, whatever it says.

    It is asked once in a process: a run does not go on with another revision of the files.
    """
    import httpx
    from huggingface_hub import get_hf_file_metadata, hf_hub_url
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    patience_s = float(os.environ.get("HF_HUB_ETAG_TIMEOUT") or _PATIENCE_S)
    try:
        get_hf_file_metadata(hf_hub_url(name, CONFIG_FILE), timeout=patience_s)
    except (HfHubHTTPError, HFValidationError):
        return None
    except (httpx.HTTPError, OSError) as error:  # HF_HUB_OFFLINE is an OSError, too
        return _reason(error)
    return None


def _reason(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
