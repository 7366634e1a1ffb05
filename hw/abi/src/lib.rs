//! The contract: registers, rings, commands, wire formats, counters.
