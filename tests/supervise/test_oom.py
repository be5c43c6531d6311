"""Finding the kernel's counter of out-of-memory kills, on trees as the kernel lays them out."""

from pathlib import Path

import pytest

from harness.supervise.oom import find_counter

V1 = "oom_kill_disable 0\nunder_oom 0\noom_kill {}\n"
V2 = "low 0\nhigh 0\nmax 12\noom 3\noom_kill {}\noom_group_kill 0\n"


@pytest.fixture
def proc(tmp_path):
    """Write a proc file system: our cgroups, the mounts, the machine's own counter."""

    def write(cgroup: str, mounts: str, vmstat: int | None = None) -> Path:
        folder = tmp_path / "proc"
        (folder / "self").mkdir(parents=True)
        (folder / "self" / "cgroup").write_text(cgroup)
        (folder / "self" / "mountinfo").write_text(mounts)
        if vmstat is not None:
            (folder / "vmstat").write_text(f"nr_free_pages 7\noom_kill {vmstat}\n")
        return folder

    return write


def group(tmp_path, name, kind, kills):
    folder = tmp_path / "cgroup" / name
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / ("memory.events" if kind == V2 else "memory.oom_control")
    file.write_text(kind.format(kills))
    return file


def v2_mount(tmp_path, root="/"):
    return f"30 29 0:26 {root} {tmp_path}/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n"


def v1_mount(tmp_path, root="/"):
    return (
        f"31 29 0:27 / {tmp_path}/cpu rw - cgroup cgroup rw,cpu\n"
        f"33 29 0:28 {root} {tmp_path}/cgroup rw - cgroup cgroup rw,memory\n"
    )


def test_the_cgroups_own_counter_is_read_and_its_rise_told(tmp_path, proc):
    file = group(tmp_path, "user.slice/job", V2, 4)
    group(tmp_path, "user.slice", V2, 900)
    counter = find_counter(proc("0::/user.slice/job\n", v2_mount(tmp_path), 1))
    assert counter is not None
    assert counter.path == file
    assert counter.kills() == 0
    file.write_text(V2.format(6))
    assert counter.kills() == 2
    file.unlink()
    assert counter.kills() is None


def test_version_1_where_the_memory_controller_is_there(tmp_path, proc):
    file = group(tmp_path, "slurm/job_7", V1, 0)
    text = f"0::/\n9:cpu,cpuacct:/\n4:memory:/slurm/job_7\n{''}"
    counter = find_counter(proc(text, v1_mount(tmp_path) + v2_mount(tmp_path / "unified")))
    assert counter is not None
    assert counter.path == file
    file.write_text(V1.format(1))
    assert counter.kills() == 1


@pytest.mark.parametrize("root", ["/docker/abc", "/"])
def test_in_a_container_the_mount_shows_only_its_own_part(tmp_path, proc, root):
    file = group(tmp_path, "", V1, 0)
    counter = find_counter(proc("4:memory:/docker/abc\n", v1_mount(tmp_path, root)))
    assert counter is not None
    assert counter.path == file


def test_the_machines_counter_where_the_cgroup_has_none(tmp_path, proc):
    (tmp_path / "cgroup").mkdir()
    folder = proc("0::/\n", v2_mount(tmp_path), 5)
    counter = find_counter(folder)
    assert counter is not None
    assert counter.path == folder / "vmstat"
    (folder / "vmstat").write_text("oom_kill 6\n")
    assert counter.kills() == 1


@pytest.mark.parametrize("cgroup", ["", "nonsense\n", "0::/gone\n", "a:b:c:d\n"])
def test_none_where_nothing_can_be_read(tmp_path, proc, cgroup):
    assert find_counter(proc(cgroup, "short line\n - x\n" + v2_mount(tmp_path))) is None


def test_this_machine_is_read_without_an_error():
    counter = find_counter()
    assert counter is None or counter.kills() is not None
