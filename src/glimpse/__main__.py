"""``python -m glimpse``: the same as the command ``glimpse``."""

from glimpse.cli import main

if __name__ == "__main__":
    main()
