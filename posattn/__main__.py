"""``python -m posattn`` is the ``posattn`` command."""

from posattn.cli import main

if __name__ == "__main__":
    main()
