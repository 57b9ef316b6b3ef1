"""Energy as the machine's own counters tell it: RAPL of x86 processors, and the battery or rails of `power_supply`."""
