"""CR317: two threads import dynamo and inductor at once, each by its first use of them."""

CONSEQUENCE = {"CR901"}  # the thread dies and the program goes on


def test_lazy_import_fails(watch):
    result = watch("lazy_import.py", "race")
    assert result.verdict == "found"
    assert result.roots == {"CR317"}
    assert result.codes <= {"CR317"} | CONSEQUENCE


def test_lazy_import_control_one_after_the_other(watch):
    assert watch("lazy_import.py", "serial").verdict == "clean"


def test_lazy_import_fix_is_to_import_them_in_the_main_thread(watch):
    assert watch("lazy_import.py", "imported").verdict == "clean"
