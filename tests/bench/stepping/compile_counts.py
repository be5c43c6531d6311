"""How often dynamo compiles, and in which threads."""

import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def compiles() -> Iterator[Counter[str]]:
    """Count dynamo's compiles by the name of the thread that does them."""
    counts: Counter[str] = Counter()

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "dynamo_start" in getattr(record, "metadata", {}):
                counts[record.threadName or ""] += 1

    handler = Handler()
    logging.getLogger("torch.__trace").addHandler(handler)
    try:
        yield counts
    finally:
        logging.getLogger("torch.__trace").removeHandler(handler)
