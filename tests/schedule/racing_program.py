"""A program without torch whose two threads race on a flag, and that tells of it as torch's would.

``python racing_program.py SCHEDULE PATIENCE``: the flag is set while one thread is inside a trace;
the other makes a call that reads it. It stands for a watched child: same recorder, same scheduler,
which gives a hold up after PATIENCE seconds.
"""

import json
import sys
import threading

from harness.child import boot
from harness.child.attach import PROBES
from harness.child.recorder import Recorder
from harness.child.schedule.make import make_scheduler
from harness.child.settings import Settings

CODE = {"id": 1, "name": "attend", "file": "/home/user/model.py", "line": 3}
WHERE = [["/home/user/model.py", 9, "loop", True]]
CONTEXT = {"grad_mode": True}


class Free:
    """No schedule."""

    def number_thread(self, thread):
        pass

    def reach(self, point, edge):
        pass


def main():
    settings = Settings.from_environment()
    recorder = Recorder(settings.folder)
    recorder.emit("header", boot.header(settings))
    for name in PROBES:
        recorder.emit("probe", {"name": name, "state": "live", "reason": ""})
    asked, patience_s = json.loads(sys.argv[1]), float(sys.argv[2])
    scheduler = make_scheduler(recorder, asked, patience_s=patience_s) or Free()
    tracing = []
    lock = threading.Lock()

    def call(first=True):
        data = {"code": CODE, "first": first, "context": CONTEXT}
        if tracing:
            data |= {"fx_flag": True, "nested": "raise", "tracing_tids": list(tracing)}
        recorder.emit("wrapper", data, where=WHERE)

    def trace():
        recorder.emit("fx_trace", {"tracer": "Tracer"}, edge="enter", where=WHERE)
        tracing.append(threading.get_native_id())
        scheduler.reach("fx_trace", "enter")
        scheduler.reach("fx_trace", "exit")
        tracing.clear()
        recorder.emit("fx_trace", {"tracer": "Tracer"}, edge="exit")

    def serve():
        scheduler.reach("wrapper", "enter")
        with lock:
            call()
        scheduler.reach("wrapper", "exit")

    call()
    for number, body in enumerate((trace, serve), 1):
        thread = threading.Thread(target=body, name=body.__name__)
        scheduler.number_thread(thread)
        thread.start()
        data = {"child_tid": thread.native_id, "name": thread.name, "number": number}
        recorder.emit("thread_start", data, where=WHERE)
        threads.append(thread)
    for thread in threads:
        thread.join()
    for hook in recorder.at_end:
        hook()
    recorder.emit("invariants", {"fx_flag_clear": True, "busy_tids": []})
    recorder.emit("end")


threads = []
main()
