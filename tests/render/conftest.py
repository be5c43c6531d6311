"""Goldens as files of their own kind, so that one can be opened and looked at."""

import pytest
from syrupy.extensions.single_file import SingleFileSnapshotExtension, WriteMode


@pytest.fixture
def golden(snapshot):
    """``golden(text, "html")``: the text is that of the golden file of this kind."""

    def check(text, extension):
        kind = type(
            "Golden",
            (SingleFileSnapshotExtension,),
            {"_write_mode": WriteMode.TEXT, "file_extension": extension},
        )
        assert text == snapshot(extension_class=kind)

    return check
