"""One command per benchmark; the last line of `--format json` is one object of a common shape."""
