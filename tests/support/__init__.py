"""What tests share: archives, clocks, ports, sizes, and the search for planted secrets."""
