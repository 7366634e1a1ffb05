//! One simulated NIC: the Verilated core and its host model.
