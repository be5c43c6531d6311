"""CR319: a lookup misses an entry that another thread's hit moves meanwhile."""

from .conftest import AFTER_COMPILES

HEALTHY = ("cache_lookup.py", "serial", "fixed")


def test_cache_lookup_race_fails(watch):
    result = watch("cache_lookup.py", "race")
    assert (result.verdict, result.roots) == ("found", {"CR319"})
    assert result.count("compiles_after_warmup") == 1


def test_cache_lookup_race_happens_unforced(watch):
    result = watch("cache_lookup.py", "natural")
    assert result.verdict == "found"
    assert result.roots - AFTER_COMPILES == {"CR319"}


def test_cache_lookup_race_control_one_thread_makes_the_same_calls(in_turn):
    result = in_turn(*HEALTHY)
    assert (result.verdict, result.count("compiles_after_warmup")) == ("clean", 0)


def test_cache_lookup_race_fix_is_one_entry_for_each_function(in_turn):
    result = in_turn(*HEALTHY)
    assert (result.verdict, result.count("compiles_after_warmup")) == ("clean", 0)
