"""One module a protocol: messages, party(), coordinator(). Each says what it reveals, and to whom."""
