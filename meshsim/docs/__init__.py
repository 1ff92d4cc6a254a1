"""Pages for people. ``verdicts.md`` and ``backends.md`` are written from the tables that the code uses."""
