"""No torch at all."""

import threading

thread = threading.Thread(target=lambda: print("hello"))
thread.start()
thread.join()
