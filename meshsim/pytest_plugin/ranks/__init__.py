"""What the plugin does on each rank: there the test's body runs, in whatever world."""
