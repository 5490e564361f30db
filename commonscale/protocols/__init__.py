"""What moves messages: one module per protocol, one function that all roles run. Each says what it reveals, to whom."""
