"""The sample project's tests run in a pytest of their own."""

collect_ignore = ["sample_trainer"]
