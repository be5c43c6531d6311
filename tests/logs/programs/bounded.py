import resource
import runpy
import sys

resource.setrlimit(resource.RLIMIT_DATA, (int(float(sys.argv[1]) * 2**30),) * 2)
sys.argv = sys.argv[2:]
runpy.run_path(sys.argv[0], run_name="__main__")
