"""`lanectl` and `python -m lanectl`."""

from __future__ import annotations

from lanectl.cli.main import main

if __name__ == "__main__":
    main()
