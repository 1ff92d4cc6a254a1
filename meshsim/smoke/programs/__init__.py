"""What every rank runs in a smoke run besides the scenario library. Each is a scenario of its own."""
