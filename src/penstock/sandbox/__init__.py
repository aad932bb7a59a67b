"""Running code that may hang, fail or attack: deadlines for functions (``threads``), and a sandbox for untrusted programs.

``sandbox = open_sandbox("jail")``; ``outcome = await sandbox.run(Program(code="print(1)"))``; ``sandbox.close()``. A
:class:`Sandbox` is asynchronous and bounds how many programs run and wait. :class:`SandboxError` is raised for what is not the
program's own failure; ``python_tool(sandbox)`` is a tool for models.
"""

from penstock.sandbox.pool import Sandbox, open_sandbox, python_tool
from penstock.sandbox.program import Limits, Outcome, Program, SandboxError

__all__ = ["Limits", "Outcome", "Program", "Sandbox", "SandboxError", "open_sandbox", "python_tool"]
