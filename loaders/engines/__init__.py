"""What turns XSpaces into tool data: the reference engine (xprof) and the process pool in which engines run.

Engines are native code that can crash, hang or need tens of GB, so the functions in `xprof` are only ever called
through `EnginePool`, in child processes with a deadline and a memory limit.
"""
