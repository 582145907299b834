"""The command ``minibert``, and ``python -m minibert``."""

import sys


def main() -> int:
    """Run the command line. Ctrl-C ends it without a traceback, also while its modules are imported."""
    try:
        from minibert import cli

        return cli.main()
    except KeyboardInterrupt:
        print("minibert: interrupted", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
